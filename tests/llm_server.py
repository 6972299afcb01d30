"""A real HTTP server on this machine that speaks as an OpenAI-compatible one."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def reply(content, *, reason="stop"):
    """A completion with one answer."""
    message = {"role": "assistant", "content": content}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": reason, "message": message}],
    }


@contextmanager
def serving(answer):
    """Serve `answer(message, call)`: a body, bytes, or a status; waits if it does."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            seen.append(body)
            made = answer(json.loads(body)["messages"][1]["content"], len(seen))
            status = made if isinstance(made, int) else 200
            sent = made if isinstance(made, bytes) else json.dumps(made).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(b"{}" if isinstance(made, int) else sent)
            except BrokenPipeError:
                pass

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        server.server_close()
