# Usage: client.py HOST PORT CA VERSION SUITE LIST DIRECTORY
# GETs the paths of LIST over one connection of http.client, the n-th answer's
# body into DIRECTORY/n. Prints "VERSION SUITE" as negotiated.
import http.client, ssl, sys

host, port, ca, version, suite, paths, directory = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
context.minimum_version = context.maximum_version = {
    "1.2": ssl.TLSVersion.TLSv1_2,
    "1.3": ssl.TLSVersion.TLSv1_3,
}[version]
if version == "1.2":
    # The suites of 1.3 come from OPENSSL_CONF: Python has no call for them.
    context.set_ciphers(suite)
connection = http.client.HTTPSConnection(host, int(port), timeout=30, context=context)
connection.auto_open = 0
connection.connect()
for n, path in enumerate(open(paths).read().split()):
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        sys.exit(f"{path}: {answer.status} {body[:300]}")
    with open(f"{directory}/{n}", "wb") as file:
        file.write(body)
print(connection.sock.version(), connection.sock.cipher()[0])
connection.close()
