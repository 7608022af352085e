// The form around `ResumableUpload`. What it remembers of a file is its operation id, under the
// facts that a browser tells of a file; the bytes are the server's to remember.

import { ResumableUpload } from "./upload.js";

const field = (id) => document.getElementById(id);
const tell = (text) => { field("told").textContent = text; };
const FIELDS = ["api", "key", "bucket"];
let upload, pausing;

// For the length of the tab, so that a reload asks for the file only.
for (const id of FIELDS) field(id).value = sessionStorage.getItem(id) ?? field(id).value;

function memory(file) {
  return ["upload", field("bucket").value, file.name, file.size, file.lastModified].join("|");
}

function operationId(file) {
  const name = memory(file);
  if (!localStorage.getItem(name)) {
    const random = crypto.getRandomValues(new Uint8Array(16));
    localStorage.setItem(name, Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join(""));
  }
  return localStorage.getItem(name);
}

function show(isRunning) {
  field("start").disabled = isRunning;
  field("pause").disabled = !isRunning;
  field("forget").disabled = isRunning || !upload?.session;
}

field("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  for (const id of FIELDS) sessionStorage.setItem(id, field(id).value);
  const file = field("file").files[0];
  pausing = new AbortController();
  upload = new ResumableUpload({
    api: field("api").value.replace(/\/$/, ""),
    key: field("key").value,
    bucket: field("bucket").value,
    file,
    name: file.name,
    operationId: operationId(file),
    signal: pausing.signal,
    onProgress: (sent, size) => {
      field("bar").value = size ? sent / size : 1;
      tell(`${sent} of ${size} bytes`);
    },
  });
  show(true);
  tell("Starting.");
  try {
    const version = await upload.run();
    localStorage.removeItem(memory(file));
    tell(`Done: version ${version.version_id}, ETag ${version.etag}.`);
  } catch (error) {
    tell(pausing.signal.aborted ? "Paused. Start goes on." : `Failed: ${error.message}`);
  }
  show(false);
});

field("pause").addEventListener("click", () => pausing.abort());

field("forget").addEventListener("click", async () => {
  upload.signal = undefined;
  try {
    await upload.giveUp();
  } catch (error) {
    tell(`Failed: ${error.message}`);
    return;
  }
  localStorage.removeItem(memory(upload.file));
  upload = undefined;
  field("bar").value = 0;
  tell("Given up: nothing of it is left.");
  show(false);
});
