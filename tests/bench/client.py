"""The measuring client: run inside a container, with or without the sidecar in the way. Prints one line of JSON.

usage: client.py HOST PATH_PREFIX CA_FILE PROXY|- ADDRESS|-
"""

import http.client
import json
import ssl
import statistics
import sys
import threading
import time

HOST, PREFIX, CA, PROXY, ADDRESS = sys.argv[1:6]
BULK_BYTES = 64 << 20
UPLOAD_BYTES = 16 << 20
REQUESTS = 400
POSTS = 100
THREADS = 8
CONNECTIONS = 60
STREAMS = 15
HEADERS = {"Host": HOST}


def connect() -> http.client.HTTPSConnection:
    """A new connection: through the proxy, or straight to the server's address under the same name."""
    context = ssl.create_default_context(cafile=CA)
    if PROXY != "-":
        host, port = PROXY.split(":")
        made = http.client.HTTPSConnection(host, int(port), context=context, timeout=120)
        made.set_tunnel(HOST, 443)
    else:
        made = http.client.HTTPSConnection(HOST, 443, context=context, timeout=120)
        made._create_connection = lambda address, *rest: __import__("socket").create_connection((ADDRESS, 443), *rest)
    return made


def get(made: http.client.HTTPSConnection, path: str) -> int:
    made.request("GET", PREFIX + path, headers=HEADERS)
    answer = made.getresponse()
    if answer.status != 200:
        raise SystemExit(f"{answer.status} for {path}: {answer.read()[:300]!r}")
    total = 0
    while block := answer.read(1 << 20):
        total += len(block)
    return total


def post(made: http.client.HTTPSConnection, body: bytes) -> None:
    made.request("POST", PREFIX + "/x", body=body, headers=HEADERS)
    answer = made.getresponse()
    if answer.status != 200:
        raise SystemExit(f"{answer.status} for a body: {answer.read()[:300]!r}")
    answer.read()


def upload() -> float:
    made = connect()
    line = b'{"role": "user", "content": "a line of text as agents send it, with nothing to find"}\n'
    begin = time.perf_counter()
    post(made, line * (UPLOAD_BYTES // len(line)))
    return UPLOAD_BYTES / 1e6 / (time.perf_counter() - begin)


def posts() -> float:
    """Requests a second with a body of 8 KB, on one kept-alive connection."""
    made, body = connect(), b'{"content": "a line of text"}\n' * 280
    post(made, body)
    begin = time.perf_counter()
    for _ in range(POSTS):
        post(made, body)
    return POSTS / (time.perf_counter() - begin)


def bulk() -> float:
    made = connect()
    get(made, "/x")
    begin = time.perf_counter()
    if get(made, f"/bulk/{BULK_BYTES}") != BULK_BYTES:
        raise SystemExit("the bulk answer was cut")
    return BULK_BYTES / 1e6 / (time.perf_counter() - begin)


def kept_alive() -> tuple[float, float]:
    """Requests a second of all threads, and the median latency in ms."""
    taken: list[float] = []

    def work() -> None:
        made = connect()
        get(made, "/x")
        for _ in range(REQUESTS // THREADS):
            begin = time.perf_counter()
            get(made, "/x")
            taken.append(time.perf_counter() - begin)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(taken) / (time.perf_counter() - begin), statistics.median(taken) * 1000


def new_connections() -> float:
    begin = time.perf_counter()
    for _ in range(CONNECTIONS):
        made = connect()
        get(made, "/x")
        made.close()
    return CONNECTIONS / (time.perf_counter() - begin)


def first_byte() -> float:
    """Until the first event of a streamed answer is there, in ms, on a kept-alive connection."""
    made, taken = connect(), []
    get(made, "/x")
    for _ in range(STREAMS):
        begin = time.perf_counter()
        made.request("GET", PREFIX + "/sse", headers=HEADERS)
        answer = made.getresponse()
        answer.read(1)
        taken.append(time.perf_counter() - begin)
        answer.read()
    return statistics.median(taken) * 1000


rate, latency = kept_alive()
found = {"bulk": bulk(), "rate": rate, "latency": latency, "new": new_connections(), "first": first_byte()}
found |= {"posts": posts(), "upload": upload()}
print(json.dumps(found))
