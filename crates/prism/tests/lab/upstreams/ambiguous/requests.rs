//! Requests that are malformed, or that two servers could understand in two ways. `ID` stands for
//! the four letters of the case, and `INNER` for [`INNER`].

/// A request that hides in a body, 44 bytes long.
pub const INNER: &str = "GET /in HTTP/1.1\r\nHost: h\r\nX-Id: in-ID\r\n\r\n";

/// Each with a name.
pub const REQUESTS: &[(&str, &str)] = &[
    // Two lengths.
    (
        "lengths differ",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\nINNER",
    ),
    (
        "lengths differ, other order",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 44\r\nContent-Length: 0\r\n\r\nINNER",
    ),
    (
        "length twice",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabcINNER",
    ),
    (
        "list of equal lengths",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 3, 3\r\n\r\nabcINNER",
    ),
    (
        "list of lengths",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 0, 44\r\n\r\nINNER",
    ),
    (
        "length and chunks",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 44\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "chunks and length",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "length in the connection",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nConnection: content-length\r\nContent-Length: 44\r\n\r\nINNER",
    ),
    (
        "coding in the connection",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "host in the connection",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nConnection: host\r\n\r\n",
    ),
    // A length that is no number.
    (
        "length with plus",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: +3\r\n\r\nabc",
    ),
    (
        "length below zero",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: -3\r\n\r\nabc",
    ),
    (
        "hexadecimal length",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 0x3\r\n\r\nabc",
    ),
    (
        "length with a space",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 4 4\r\n\r\nINNER",
    ),
    (
        "length with letters",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 3abc\r\n\r\nabc",
    ),
    (
        "length of two to the 64",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 18446744073709551616\r\n\r\nabc",
    ),
    (
        "length of thirty digits",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 100000000000000000000000000003\r\n\r\nabc",
    ),
    (
        "no length behind its name",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length:\r\n\r\nINNER",
    ),
    (
        "space before the colon",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length : 44\r\n\r\nINNER",
    ),
    (
        "tab before the colon",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length\t: 44\r\n\r\nINNER",
    ),
    (
        "zero byte in a name",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length\0: 44\r\n\r\nINNER",
    ),
    (
        "length with an underscore",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent_Length: 44\r\n\r\n",
    ),
    (
        "length of a folded line",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length:\r\n 44\r\n\r\nINNER",
    ),
    (
        "length in the first line's fold",
        "POST / HTTP/1.1\r\n Content-Length: 44\r\nHost: h\r\nX-Id: ID\r\n\r\nINNER",
    ),
    // A coding that is not `chunked`.
    (
        "unknown coding",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "cut coding",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunk\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "identity behind chunked",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "identity alone",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: identity\r\nContent-Length: 44\r\n\r\nINNER",
    ),
    (
        "chunked in chunked",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "chunked twice",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "chunked and another",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "chunked with a parameter",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "quoted chunked",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "vertical tab before chunked",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: \u{b}chunked\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "space before the colon of a coding",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "folded chunked",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\nINNER",
    ),
    (
        "gzip and chunked",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "capital chunked",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunks in HTTP/1.0",
        "POST / HTTP/1.0\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nINNER",
    ),
    // Chunks.
    (
        "chunk size with 0x",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "chunk size below zero",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "chunk size with plus",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "chunk size behind a space",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "chunk size that wraps",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "no chunk size",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "chunk size that is no number",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "bare LF behind a chunk size",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    ),
    (
        "bare LF in an extension",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n3;\nxx\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "bare CR in an extension",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n3;\rxx\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "chunk longer than its size",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    ),
    (
        "bare LF behind a chunk",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\r\n\r\n",
    ),
    (
        "bare LF behind the trailers",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\nINNER",
    ),
    (
        "folded trailer",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: b\r\n c\r\n\r\n",
    ),
    // Lines.
    (
        "bare LF everywhere",
        "GET / HTTP/1.1\nHost: h\nX-Id: ID\n\n",
    ),
    (
        "bare LF behind one line",
        "GET / HTTP/1.1\r\nHost: h\nX-Id: ID\r\n\r\n",
    ),
    (
        "bare CR in a value",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nX-A: b\rX-B: c\r\n\r\n",
    ),
    (
        "bare CR behind one line",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\rX-A: b\r\n\r\n",
    ),
    (
        "CR CR LF",
        "GET / HTTP/1.1\r\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "zero byte in a value",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nX-A: b\0c\r\n\r\n",
    ),
    (
        "control character in a value",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nX-A: b\u{1}c\r\n\r\n",
    ),
    (
        "DEL in a value",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nX-A: b\u{7f}c\r\n\r\n",
    ),
    (
        "folded line",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nX-A: b\r\n c\r\n\r\n",
    ),
    (
        "no colon",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nX-A\r\n\r\n",
    ),
    (
        "no name",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n: b\r\n\r\n",
    ),
    (
        "space in a name",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nX A: b\r\n\r\n",
    ),
    (
        "letter beyond ASCII in a name",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nX-\u{e4}: b\r\n\r\n",
    ),
    (
        "comma in a name",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nX,A: b\r\n\r\n",
    ),
    // The first line.
    (
        "two spaces",
        "GET  / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    ("tabs", "GET\t/\tHTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n"),
    (
        "space before the method",
        " GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "word behind the version",
        "GET / HTTP/1.1 x\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "space behind the version",
        "GET / HTTP/1.1 \r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "version 1.2",
        "GET / HTTP/1.2\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "version 2.0",
        "GET / HTTP/2.0\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "version of two digits",
        "GET / HTTP/1.10\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "small version",
        "GET / http/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    ("no version", "GET /\r\nHost: h\r\nX-Id: ID\r\n\r\n"),
    ("HTTP/2 without TLS", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    (
        "space in the target",
        "GET /a b HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "control character in the target",
        "GET /a\u{1}b HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "letter beyond ASCII in the target",
        "GET /\u{e4} HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "fragment",
        "GET /a#b HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "target without slash",
        "GET a HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    ("asterisk", "GET * HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n"),
    (
        "colon in the method",
        "GET: / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "tunnel",
        "CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "target with another host",
        "GET http://other/ HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "target with a user",
        "GET http://user@h/ HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    // The host.
    ("no host", "GET / HTTP/1.1\r\nX-Id: ID\r\n\r\n"),
    (
        "host twice",
        "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "two hosts",
        "GET / HTTP/1.1\r\nHost: h\r\nHost: other\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "list of hosts",
        "GET / HTTP/1.1\r\nHost: h, other\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "host with a path",
        "GET / HTTP/1.1\r\nHost: h/x\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "host with a user",
        "GET / HTTP/1.1\r\nHost: u@h\r\nX-Id: ID\r\n\r\n",
    ),
    (
        "host with a space",
        "GET / HTTP/1.1\r\nHost: h x\r\nX-Id: ID\r\n\r\n",
    ),
    // Bodies where few expect them, and other protocols.
    (
        "GET with a body",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 44\r\n\r\nINNER",
    ),
    (
        "HEAD with a body",
        "HEAD / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nContent-Length: 44\r\n\r\nINNER",
    ),
    (
        "unknown expectation",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nExpect: x\r\nContent-Length: 3\r\n\r\nabc",
    ),
    (
        "upgrade to HTTP/2",
        "GET / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
    ),
    (
        "upgrade with a body",
        "POST / HTTP/1.1\r\nHost: h\r\nX-Id: ID\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 44\r\n\r\nINNER",
    ),
];

/// Answers of a server, each with a name. A client must not take them for whole ones where HAProxy
/// refuses them.
pub const ANSWERS: &[(&str, &str)] = &[
    ("whole", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    (
        "lengths differ",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nok",
    ),
    (
        "list of lengths",
        "HTTP/1.1 200 OK\r\nContent-Length: 2, 5\r\n\r\nok",
    ),
    (
        "length with plus",
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
    ),
    (
        "length below zero",
        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
    ),
    (
        "length with letters",
        "HTTP/1.1 200 OK\r\nContent-Length: 2x\r\n\r\nok",
    ),
    (
        "length of two to the 64",
        "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\nok",
    ),
    (
        "space before the colon",
        "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
    ),
    (
        "unknown coding",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: x\r\n\r\nok",
    ),
    (
        "chunk size that is no number",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nok\r\n0\r\n\r\n",
    ),
    (
        "chunk size that wraps",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nok\r\n0\r\n\r\n",
    ),
    (
        "chunk longer than its size",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\noks\r\n0\r\n\r\n",
    ),
    (
        "chunks without an end",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    ),
    (
        "body without an end",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",
    ),
    (
        "head without an end",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
    ),
    ("no status", "HTTP/1.1 OK\r\nContent-Length: 2\r\n\r\nok"),
    (
        "status of four digits",
        "HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok",
    ),
    ("another protocol", "SSH-2.0-server\r\n\r\n"),
    (
        "version 2.0",
        "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ),
    (
        "zero byte in a value",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\0c\r\n\r\nok",
    ),
    (
        "bare CR in a value",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\rX-B: c\r\n\r\nok",
    ),
    (
        "space in a name",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX A: b\r\n\r\nok",
    ),
    (
        "no colon",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A\r\n\r\nok",
    ),
    ("nothing", ""),
];
