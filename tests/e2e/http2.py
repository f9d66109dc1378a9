"""HTTP/2 by hand, for what no client library would send. Nothing here keeps the rules unless its caller does."""
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
STREAMS = range(1, 1 << 31, 2)  # a client's


def integer(value, bits, first=0):
    """HPACK's, whose first byte begins with `first`."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value % 128 | 128)
        value //= 128
    return bytes([*out, value])


def literal(name, value, first=0x10):
    """A header that is not indexed; with `first` 0x40 one that is."""
    name, value = name.encode(), value.encode()
    return bytes([first]) + integer(len(name), 7) + name + integer(len(value), 7) + value


def call_headers(method, *more):
    """Of a call of ebb.v1, for example SessionService/GetSession."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", f"/ebb.v1.{method}"), (":authority", "localhost"), ("te", "trailers"),
              ("content-type", "application/grpc"), *more]
    return b"".join(literal(*field) for field in fields)


def message(payload, compressed=False):
    """As gRPC frames it."""
    return struct.pack(">?I", compressed, len(payload)) + payload


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class Connection:
    """Use it in a with statement. Nothing is read, and nothing acknowledged, unless its caller does. `source`: the address that it comes from."""

    def __init__(self, addr, greet=True, source=""):
        host, port = addr.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0) if source else None)
        if greet:
            self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *frames):
        """False once the server has hung up."""
        try:
            self.socket.sendall(b"".join(frames))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def call(self, stream, method, request, *more):
        """A whole unary or server-streaming call; `request` is a protobuf message."""
        return self.send(frame(HEADERS, END_HEADERS, stream, call_headers(method, *more)),
                         frame(DATA, END_STREAM, stream, message(request.SerializeToString())))

    def abort(self):
        """As when the client's process is killed with data unread: a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def frames(self):
        """What the server says, (kind, flags, stream, payload), until it hangs up."""
        unread = b""
        while True:
            while len(unread) >= 9 and len(unread) >= (size := 9 + int.from_bytes(unread[:3], "big")):
                yield unread[3], unread[4], int.from_bytes(unread[5:9], "big") & 0x7FFFFFFF, unread[9:size]
                unread = unread[size:]
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return
            if not data:
                return
            unread += data

    def answer_pings(self):
        """Until the connection ends."""
        for kind, flags, _, payload in self.frames():
            if kind == PING and not flags & ACK:
                self.send(frame(PING, ACK, 0, payload))

    def wait_for(self, kind):
        """The first frame of a kind; None if the server hangs up before."""
        return next((each for each in self.frames() if each[0] == kind), None)
