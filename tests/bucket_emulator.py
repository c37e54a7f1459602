"""Start gcp-storage-emulator with what it lacks: conditional writes, and buckets that fail."""

import http.server
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets, objects

upload, download = objects.insert, objects.download


def generation(request, storage, name):
    """Return the generation of an object, "0" if it does not exist."""
    try:
        return storage.get_file_obj(request.params["bucket_name"], name)["generation"]
    except NotFound:
        return "0"


def conditional_upload(request, response, storage, *args, **kwargs):
    """Write an object only if it has the generation that the request names."""
    data = request.data  # The client expects that the request body is read, even if it is refused.
    name = request.query.get("name", [""])[0] or data["meta"]["name"]
    if request.query.get("ifGenerationMatch") in (None, [generation(request, storage, name)]):
        upload(request, response, storage, *args, **kwargs)
    else:
        response.status = HTTPStatus.PRECONDITION_FAILED


def download_with_generation(request, response, storage, *args, **kwargs):
    """Read an object, with its generation, which the next conditional upload names."""
    download(request, response, storage, *args, **kwargs)
    response["x-goog-generation"] = generation(request, storage, request.params["object_id"])


# Replace the upload and download handlers before importing `server`, which copies them.
objects.insert, objects.download = conditional_upload, download_with_generation

from gcp_storage_emulator import server  # noqa: E402

# A client may open a connection that it does not use, for which a single thread would wait.
http.server.HTTPServer = http.server.ThreadingHTTPServer
handle, lock = server.Router.handle, threading.Lock()


def handle_or_fail(self, method):
    """Answer requests one by one, late for the bucket "slow", and refuse for two others."""
    request = self._request_handler
    if "/b/slow" in request.path:
        time.sleep(5)
    is_write = method != server.GET and "/b/readonly" in request.path
    if is_write or "/b/forbidden" in request.path:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        request.send_response(HTTPStatus.FORBIDDEN)
        request.send_header("Content-Length", "0")
        request.end_headers()
        return
    with lock, suppress(BrokenPipeError):  # raised if the client cancelled the request
        handle(self, method)


server.Router.handle = handle_or_fail
emulator = server.create_server("localhost", int(sys.argv[1]), True, "bucket")
buckets.create_bucket("readonly", emulator._storage)
emulator.run()
