"""A proxy in front of a server, that cuts the connection at a byte of the answer, or has it fall silent there."""
import select
import socket
import struct
import threading


class Gate:
    """Listens on a free port and passes on to `upstream`, host:port; use it in a with statement.

    cut_after  bytes from the server that still pass before the connection is cut; None: all. The cut unsets it.
    abrupt     the client is to see a reset instead of an orderly end
    silent     neither is to see an end: the connection stays, and nothing passes any more
    on_cut     called at the cut, before the client can know of it
    cuts       how many there were
    passed     bytes from the server so far
    """

    def __init__(self, upstream):
        self.upstream = upstream
        self.cut_after, self.abrupt, self.silent, self.on_cut = None, False, False, lambda: None
        self.cuts = self.passed = 0

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.addr = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._stop, self._stopped = socket.socketpair()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        self._stop.close()  # which every thread waits for
        for thread in self._threads:
            thread.join(60)
        self._stopped.close()
        self._listener.close()

    def _accept(self):
        while self._listener in select.select([self._listener, self._stopped], [], [])[0]:
            client, _ = self._listener.accept()
            self._threads.append(threading.Thread(target=self._connect, args=(client,), daemon=True))
            self._threads[-1].start()

    def _connect(self, client):
        host, port = self.upstream.rsplit(":", 1)
        try:
            with client, socket.create_connection((host, int(port)), timeout=60) as server:
                self._pass_on(client, server)
        except OSError:  # either side has gone
            pass

    def _pass_on(self, client, server):
        while True:
            for source in select.select([client, server, self._stopped], [], [])[0]:
                data = b"" if source is self._stopped else source.recv(1 << 16)
                if not data:
                    return
                if source is client:
                    server.sendall(data)
                elif self._pass_back(data, client):
                    return

    def _pass_back(self, data, client):
        """True at the cut."""
        if self.cut_after is not None:
            data = data[:self.cut_after]
            self.cut_after -= len(data)
        client.sendall(data)
        self.passed += len(data)
        if self.cut_after != 0:
            return False
        self.cut_after = None
        self.on_cut()
        self.cuts += 1
        if self.silent:
            select.select([self._stopped], [], [])
        if self.abrupt:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return True
