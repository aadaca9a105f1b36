"""`{{ name }}` answers HTTP requests. Every request runs on a fresh copy of the interpreter:
globals do not keep their values between requests.
"""

from weir import StatusError
from weir.http import Request, http_function


@http_function
def handle(request: Request) -> str:
    match request.method, request.path:
        case "GET", "/":
            return "hello from {{ name }}\n"
        case "POST", "/shout":
            text = shout(request.text())
            # Standard output and error go to `weir logs {{ name }}`.
            print(f"shouted {len(text.encode())} bytes")
            return text
        case _:
            raise StatusError(404, "there are GET / and POST /shout")


def shout(text: str) -> str:
    return text.upper()
