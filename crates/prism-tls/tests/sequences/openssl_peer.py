"""OpenSSL's libssl as a TLS client in memory, driven over stdin and stdout.

A command is one byte, a length (4 bytes, big-endian) and a payload:
N new connection with the cipher suite named in the payload; R bytes from the
server; S data to send; K KeyUpdate (payload 1: ask for one in return); C close.
Each is answered with: 1 byte whether the server has closed, the lengths (4 bytes
each) of bytes for the server and of data from it, and both.

Python's own ssl module has no KeyUpdate, so libssl is called directly.
"""

import ctypes
import struct
import sys

SSL = ctypes.CDLL("libssl.so.3")
CRYPTO = ctypes.CDLL("libcrypto.so.3")
for library, names in (
    (SSL, "TLS_client_method SSL_CTX_new SSL_new"),
    (CRYPTO, "BIO_new BIO_s_mem"),
):
    for name in names.split():
        getattr(library, name).restype = ctypes.c_void_p

SET_MIN_VERSION, SET_MAX_VERSION = 123, 124
TLS_1_2, TLS_1_3 = 0x303, 0x304
WANT_READ, ZERO_RETURN = 2, 6
RECEIVED_SHUTDOWN = 2


def pointer(value):
    return ctypes.c_void_p(value)


def fail(what, code):
    CRYPTO.ERR_print_errors_fp(pointer(ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stderr").value))
    sys.exit(f"{what}: error {code}")


class Client:
    def __init__(self, suite):
        self.context = pointer(SSL.SSL_CTX_new(pointer(SSL.TLS_client_method())))
        version = TLS_1_3 if suite.startswith(b"TLS_") else TLS_1_2
        for which in (SET_MIN_VERSION, SET_MAX_VERSION):
            SSL.SSL_CTX_ctrl(self.context, which, ctypes.c_long(version), None)
        choose = (
            SSL.SSL_CTX_set_ciphersuites if version == TLS_1_3 else SSL.SSL_CTX_set_cipher_list
        )
        if choose(self.context, suite) != 1:
            fail(suite, 0)
        self.ssl = pointer(SSL.SSL_new(self.context))
        self.incoming = pointer(CRYPTO.BIO_new(pointer(CRYPTO.BIO_s_mem())))
        self.outgoing = pointer(CRYPTO.BIO_new(pointer(CRYPTO.BIO_s_mem())))
        for bio in (self.incoming, self.outgoing):
            CRYPTO.BIO_ctrl(bio, 130, ctypes.c_long(-1), None)  # empty is not the end
        SSL.SSL_set_bio(self.ssl, self.incoming, self.outgoing)
        SSL.SSL_set_connect_state(self.ssl)
        self.buffer = ctypes.create_string_buffer(1 << 16)

    def free(self):
        SSL.SSL_free(self.ssl)
        SSL.SSL_CTX_free(self.context)

    def check(self, what, result):
        if result > 0:
            return
        error = SSL.SSL_get_error(self.ssl, result)
        if error not in (WANT_READ, ZERO_RETURN):
            fail(what, error)

    def handshake(self):
        self.check("handshake", SSL.SSL_do_handshake(self.ssl))

    def receive(self, wire):
        if wire and CRYPTO.BIO_write(self.incoming, wire, len(wire)) != len(wire):
            fail("BIO_write", 0)
        if not SSL.SSL_is_init_finished(self.ssl):
            self.handshake()

    def send(self, data):
        if SSL.SSL_write(self.ssl, data, len(data)) != len(data):
            fail("SSL_write", 0)

    def key_update(self, ask):
        if SSL.SSL_key_update(self.ssl, ask) != 1:
            fail("SSL_key_update", 0)
        self.handshake()

    def close(self):
        if SSL.SSL_shutdown(self.ssl) < 0:
            fail("SSL_shutdown", 0)

    def plain(self):
        out = b""
        while SSL.SSL_is_init_finished(self.ssl):
            count = SSL.SSL_read(self.ssl, self.buffer, len(self.buffer))
            if count <= 0:
                self.check("SSL_read", count)
                break
            out += self.buffer.raw[:count]
        return out

    def wire(self):
        out = b""
        while (count := CRYPTO.BIO_read(self.outgoing, self.buffer, len(self.buffer))) > 0:
            out += self.buffer.raw[:count]
        return out

    def closed(self):
        return bool(SSL.SSL_get_shutdown(self.ssl) & RECEIVED_SHUTDOWN)


def main():
    client = None
    while head := sys.stdin.buffer.read(5):
        command, length = struct.unpack("!cI", head)
        payload = sys.stdin.buffer.read(length)
        plain = b""
        if command == b"N":
            if client:
                client.free()
            client = Client(payload)
        elif command == b"R":
            client.receive(payload)
            plain = client.plain()
        elif command == b"S":
            client.send(payload)
        elif command == b"K":
            client.key_update(payload[0])
        elif command == b"C":
            client.close()
        wire = b"" if command == b"N" else client.wire()
        head = struct.pack("!?II", client.closed(), len(wire), len(plain))
        sys.stdout.buffer.write(head + wire + plain)
        sys.stdout.buffer.flush()


main()
