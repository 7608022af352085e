// One file, sent in parts to /v1/uploads. Whatever has reached the server stays there, so that the
// same call after a reload, or on another day, sends only what is missing.

const PARALLEL = 3;
const MOST_WAIT_SECONDS = 30;

export class UploadError extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `HTTP ${status}`);
    this.status = status;
    this.code = problem.code;
  }

  // A fault of the request stays one; the rest may be over at the next try.
  get isFinal() {
    return this.status >= 400 && this.status < 500 && ![408, 429].includes(this.status);
  }
}

export class ResumableUpload {
  // `operationId` is what makes it the same upload the next time: keep it until the file is there.
  constructor({ api, key, bucket, file, name, operationId, onProgress = () => {}, signal }) {
    Object.assign(this, { api, key, bucket, file, name, operationId, onProgress, signal });
  }

  // Sends what is missing and returns the version that came of it.
  async run() {
    this.session = await this.#call("POST", "/uploads", {
      operation_id: this.operationId,
      bucket: this.bucket,
      key: this.name,
      size: this.file.size,
      content_type: this.file.type || null,
    });
    if (this.session.state === "open") {
      await this.#sendMissing(await this.#partsThere());
      this.session = await this.#call("POST", `/uploads/${this.session.id}:complete`, {});
    }
    while (this.session.state === "completing") {
      await this.#sleep(0.3);
      this.session = await this.#call("GET", `/uploads/${this.session.id}`);
    }
    if (this.session.state !== "done") {
      throw new UploadError(409, this.session.error ?? { detail: `it is ${this.session.state}` });
    }
    return this.session.result;
  }

  // Removes what has been sent; what is gone already is fine.
  async giveUp() {
    try {
      if (this.session) await this.#call("DELETE", `/uploads/${this.session.id}`);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
  }

  async #partsThere() {
    const there = new Map();
    for (let after = 0; after !== null; ) {
      const page = await this.#call("GET", `/uploads/${this.session.id}?after=${after}`);
      for (const part of page.parts) there.set(part.number, part);
      after = page.next_part;
    }
    return there;
  }

  async #sendMissing(there) {
    const { part_bytes: partBytes } = this.session;
    const count = Math.max(1, Math.ceil(this.file.size / partBytes));
    let sent = 0, next = 1;
    const worker = async () => {
      while (next <= count) {
        const number = next++;
        const body = this.file.slice((number - 1) * partBytes, number * partBytes);
        const sha256 = await digest(body);
        const known = there.get(number);
        if (!known || known.size !== body.size || (sha256 && known.sha256 !== sha256)) {
          const headers = sha256 ? { "X-Blox-Sha256": sha256 } : {};
          await this.#call("PUT", `/uploads/${this.session.id}/parts/${number}`, body, headers);
        }
        sent += body.size;
        this.onProgress(sent, this.file.size);
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, worker));
  }

  // Asks until there is an answer: the network, a restart and "too busy" are waited for.
  async #call(method, path, body, headers = {}) {
    const isBytes = body instanceof Blob;
    for (let wait = 0.5; ; wait = Math.min(2 * wait, MOST_WAIT_SECONDS)) {
      this.signal?.throwIfAborted();
      try {
        const answer = await fetch(this.api + path, {
          method,
          headers: {
            Authorization: `Bearer ${this.key}`,
            "Content-Type": isBytes ? "application/octet-stream" : "application/json",
            ...headers,
          },
          body: isBytes ? body : body && JSON.stringify(body),
          signal: this.signal,
        });
        if (answer.ok) return answer.status === 204 ? null : await answer.json();
        throw new UploadError(answer.status, await answer.json().catch(() => ({})));
      } catch (error) {
        if (this.signal?.aborted || error.isFinal) throw error;
        await this.#sleep(wait);
      }
    }
  }

  #sleep(seconds) {
    return new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  }
}

// Browsers have it on https pages and on this machine; elsewhere parts go without.
async function digest(blob) {
  if (!globalThis.crypto?.subtle) return "";
  const bytes = await crypto.subtle.digest("SHA-256", await blob.arrayBuffer());
  return Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
