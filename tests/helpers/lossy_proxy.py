"""What stands between a client and a server and loses what it is told to lose."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LossyProxy:
    """Passes requests on to a server; `faults` says, in turn, what becomes of the next ones.

    "lose": it is done, and the answer is lost. "drop": it is not passed on, and nobody is told.
    A number: it is not passed on, and answered with this status; with headers, (429, {...}).
    """

    def __init__(self, target):
        self.faults, self.passed = [], []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, target))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def _handler(proxy, target):
    class Handler(BaseHTTPRequestHandler):
        def _any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.faults.pop(0) if proxy.faults else None
            if fault == "drop":
                self._hang_up()
            elif fault is None or fault == "lose":
                status, headers, content = self._passed_on(body)
                if fault == "lose":
                    self._hang_up()
                else:
                    self._answer(status, headers, content)
            else:
                status, headers = fault if isinstance(fault, tuple) else (fault, {})
                self._answer(status, headers, b"the proxy says no")

        do_GET = do_POST = do_PUT = do_DELETE = _any

        def _passed_on(self, body):
            headers = {n: v for n, v in self.headers.items() if n.lower() != "host"}
            connection = http.client.HTTPConnection(target.removeprefix("http://"))
            connection.request(self.command, self.path, body, headers | {"Connection": "close"})
            response = connection.getresponse()
            content = response.read()
            connection.close()
            proxy.passed.append((self.command, self.path.split("?")[0], response.status))
            kept = ("content-type", "retry-after")
            return response.status, {n: v for n, v in response.headers.items()
                                     if n.lower() in kept}, content  # fmt: skip

        def _answer(self, status, headers, content):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _hang_up(self):
            self.close_connection = True

        def log_message(self, *words):
            pass

    return Handler
