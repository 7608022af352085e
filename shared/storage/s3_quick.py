"""GET, PUT and HEAD of an object past boto3, whose own work would cost most of a small copy.

Whatever is copied needs these three. They are signed by botocore's signer, go over the connections
and under the limits of all other calls, and take, give and raise what boto3's calls do. A bucket
that is answered for from elsewhere is left to boto3, which knows how to follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.parsers import create_parser
from botocore.response import StreamingBody
from botocore.utils import parse_timestamp

from shared.storage.s3_transport import TimedRaw, Transport

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from shared.storage.s3_client import S3Settings

#: From this size on the provider is asked first whether it would take a body: a refusal then costs
#: no sending, and the question less than a tenth of it.
ASK_FIRST_BYTES = 2 * 1024 * 1024

_METADATA = "x-amz-meta-"
#: boto3's names of what is sent and of what is told, and the headers that hold it.
_SENT = {
    "Range": "Range",
    "IfNoneMatch": "If-None-Match",
    "ContentMD5": "Content-MD5",
    "ChecksumMode": "x-amz-checksum-mode",
    "ChecksumAlgorithm": "x-amz-sdk-checksum-algorithm",
    "ChecksumSHA256": "x-amz-checksum-sha256",
}
_NO_HEADERS = frozenset({"Bucket", "Key", "Metadata"})
_TOLD = {
    "ETag": "etag",
    "ContentRange": "content-range",
    "ChecksumSHA256": "x-amz-checksum-sha256",
    "ServerSideEncryption": "x-amz-server-side-encryption",
    "SSECustomerAlgorithm": "x-amz-server-side-encryption-customer-algorithm",
}
#: Answers of those who do not keep the bucket.
_ELSEWHERE_STATUSES = frozenset({301, 302, 307})
_ELSEWHERE_CODES = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
)


class QuickCalls:
    """Three of boto3's calls on one bucket. Use them inside `Transport.until`, as boto3's."""

    def __init__(self, client: S3Client, transport: Transport, settings: S3Settings) -> None:
        self._client = client
        self._transport = transport
        self._signer: Any = S3SigV4Auth(
            Credentials(settings.access_key, settings.secret_key), "s3", settings.region
        )
        config: Any = client.meta.config
        self._context = {"client_config": config}
        self._user_agent = config.user_agent
        # boto3 knows how a provider is addressed.
        example = client.generate_presigned_url(
            "get_object", Params={"Bucket": settings.bucket, "Key": "k"}
        )
        self._place = example.partition("?")[0].removesuffix("k")
        self._host = urlsplit(self._place).netloc
        self._is_elsewhere = False

    def get_object(self, **asked: Any) -> dict[str, Any]:
        """See boto3; without what nobody here reads."""
        told = self._told("GET", "GetObject", asked)
        if told is None:
            return dict(self._client.get_object(**asked))
        headers, raw = told
        answer = _named(headers)
        unread: Any = raw
        answer["Body"] = StreamingBody(unread, answer.get("ContentLength", 0))
        return answer

    def head_object(self, **asked: Any) -> dict[str, Any]:
        """See boto3; without what nobody here reads."""
        told = self._told("HEAD", "HeadObject", asked)
        if told is None:
            return dict(self._client.head_object(**asked))
        answer = _named(told[0])
        if moment := told[0].get("last-modified"):
            answer["LastModified"] = _moment(moment)
        return answer

    def put_object(self, *, Body: Any, **asked: Any) -> dict[str, Any]:  # noqa: N803
        """See boto3; without what nobody here reads."""
        told = self._told("PUT", "PutObject", asked, Body)
        if told is None:
            if not isinstance(Body, bytes):
                Body.seek(0)
            return dict(self._client.put_object(Body=Body, **asked))
        return _named(told[0])

    def _told(
        self, method: str, operation: str, asked: Mapping[str, Any], body: Any = None
    ) -> tuple[Mapping[str, str], TimedRaw] | None:
        """Return what an answer of 2xx tells; None where boto3 has to ask."""
        if self._is_elsewhere:
            return None
        url = self._place + quote(asked["Key"], safe="/~")
        response, raw = self._transport.exchange(
            method, url, self._signed(method, url, asked, body), body
        )
        status, is_well = response.status, response.status < 300
        if is_well and method == "GET":
            return response.headers, raw
        said = raw.read()  # Also so that the connection goes back to its pool.
        if is_well:
            if b"<Error>" not in said:
                return response.headers, raw
            status = 500  # It was met after the answer had begun; boto3 takes it so too.
        error = _error(status, response.headers, said, operation)
        if not _leads_elsewhere(error, method):
            raise error
        self._is_elsewhere = True
        return None

    def _signed(
        self, method: str, url: str, asked: Mapping[str, Any], body: Any
    ) -> dict[str, str | bytes]:
        """Return the headers of a request, with those that the signature does not cover."""
        headers = {_SENT[name]: value for name, value in asked.items() if name not in _NO_HEADERS}
        for name, value in asked.get("Metadata", {}).items():
            headers[_METADATA + name] = value
        headers["Host"] = self._host  # The signer would take the address apart, twice.
        request: Any = AWSRequest(method=method, url=url, headers=headers)
        request.context.update(self._context)
        self._signer.add_auth(request)
        signed: dict[str, str | bytes] = dict(request.headers.items())
        signed["User-Agent"] = self._user_agent
        if body is not None:
            signed["Content-Length"] = str(len(body))
            if len(body) >= ASK_FIRST_BYTES:
                signed["Expect"] = b"100-continue"  # botocore's connections look for bytes.
        return signed


def _named(headers: Mapping[str, str]) -> dict[str, Any]:
    answer: dict[str, Any] = {name: headers[at] for name, at in _TOLD.items() if at in headers}
    if (length := headers.get("content-length")) is not None:
        answer["ContentLength"] = int(length)
    answer["Metadata"] = {
        name[len(_METADATA) :].lower(): value
        for name, value in headers.items()
        if name.lower().startswith(_METADATA)
    }
    return answer


def _moment(text: str) -> Any:
    try:
        return parsedate_to_datetime(text)
    except ValueError:
        # Some write it otherwise; boto3 reads what can be read.
        return parse_timestamp(text)


def _error(status: int, headers: Mapping[str, str], body: bytes, operation: str) -> ClientError:
    parser: Any = create_parser("rest-xml")
    answer = {"status_code": status, "headers": headers, "body": body}
    return ClientError(parser.parse(answer, None), operation)


def _leads_elsewhere(error: ClientError, method: str) -> bool:
    """Tell whether boto3 would follow such an answer to another region."""
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return (
        status in _ELSEWHERE_STATUSES
        or error.response.get("Error", {}).get("Code") in _ELSEWHERE_CODES
        # A HEAD has no body to tell more.
        or (status == 400 and method == "HEAD")
    )
