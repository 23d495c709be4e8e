"""An application that guards files: it says who may read one, and something else sends it.

    python3 app.py ADDRESS:PORT

`/file/NAME` answers those who have logged in with X-Accel-Redirect, as for nginx. `/order` answers
with the status and the header fields that its query names.
"""

import mimetypes
import sys
from urllib.parse import quote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from socketserver import ThreadingMixIn

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, HttpResponseForbidden
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"], DEBUG=False, ROOT_URLCONF=__name__, SECRET_KEY="of a test"
)


def file(request, name):
    if request.COOKIES.get("login") != "yes":
        return HttpResponseForbidden("log in first\n")
    answer = HttpResponse(b"not for the client\n", content_type=mimetypes.guess_type(name)[0])
    answer["X-Accel-Redirect"] = "/protected/" + quote(name)
    answer["Content-Disposition"] = f'inline; filename="{name}"'
    answer["Cache-Control"] = "private, max-age=60"
    answer["X-Internal"] = "not for the client"
    answer.set_cookie("seen", name)
    return answer


def order(request):
    answer = HttpResponse(b"not for the client\n", status=int(request.GET.get("status", 200)))
    for name in ["X-Accel-Redirect", "Location", "Content-Type"]:
        if name in request.GET:
            answer[name] = request.GET[name]
    answer["X-Got"] = request.method
    return answer


def loop(request):
    answer = HttpResponse()
    answer["X-Accel-Redirect"] = "/loop"
    return answer


urlpatterns = [
    path("file/<path:name>", file),
    path("order", order),
    path("loop", loop),
    path("", lambda request: HttpResponse("the application\n")),
]


class Server(ThreadingMixIn, WSGIServer):
    """One thread a connection, so that nobody waits for another one."""

    daemon_threads = True


class Handler(WSGIRequestHandler):
    def log_message(self, *_):
        pass


if __name__ == "__main__":
    host, port = sys.argv[1].rsplit(":", 1)
    application = get_wsgi_application()
    make_server(host, int(port), application, Server, Handler).serve_forever()
