"""Stores and serves named objects, like ../objects."""

from weir import NotFound, NotGranted, Tensor, objects
from weir.http import Request, Response, http_function


@http_function
def handle(request: Request) -> object:
    name = request.path.strip("/")
    try:
        match request.method:
            case "GET":
                return objects.get(name).tobytes()
            case "PUT":
                objects.put(name, Tensor(request.body()), ttl=60)
            case "DELETE":
                objects.delete(name)
            case _:
                return Response("GET, PUT or DELETE\n", 405)
    except NotFound as error:
        return Response(f"{error}\n", 404)
    except NotGranted as error:
        return Response(f"{error}\n", 403)
    return Response("", 204)
