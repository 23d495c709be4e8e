//! Bodies: their end is found exactly, wherever the stream is cut.

use prism_http::{
    BodyError, BodyReader, ChunkedDecoder, Limits, RequestHead, ResponseFraming, write_chunk,
    write_last_chunk,
};

/// The end of a chunked body without trailers.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Feeds `pieces` one after the other. Returns the data and the number of used bytes.
fn read<'a>(
    reader: &mut BodyReader,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(Vec<u8>, usize), BodyError> {
    let (mut data, mut total) = (Vec::new(), 0);
    for piece in pieces {
        let mut rest = piece;
        while !reader.is_done() && !rest.is_empty() {
            let step = reader.consume(rest)?;
            assert!(step.data.end <= step.consumed && step.consumed <= rest.len());
            assert!(step.consumed > 0, "no progress");
            assert_eq!(step.done, reader.is_done());
            data.extend_from_slice(&rest[step.data]);
            rest = &rest[step.consumed..];
            total += step.consumed;
        }
    }
    Ok((data, total))
}

fn chunked(bytes: &[u8]) -> Result<(Vec<u8>, usize, bool), BodyError> {
    let mut reader = BodyReader::new(ResponseFraming::Chunked, 1 << 40);
    let (data, total) = read(&mut reader, [bytes])?;
    Ok((data, total, reader.is_done()))
}

#[test]
fn chunked_bodies_end_where_they_end() {
    let rows: &[(&[u8], &[u8], &[u8])] = &[
        (b"0\r\n\r\n", b"", b""),
        (b"3\r\nabc\r\n0\r\n\r\n", b"abc", b""),
        (b"3\r\nabc\r\n0\r\n\r\nGET /", b"abc", b"GET /"),
        (
            b"00A\r\n0123456789\r\n000\r\n\r\n\r\n",
            b"0123456789",
            b"\r\n",
        ),
        (b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n", b"ab", b""),
        (b"1;n=v;q=\"x y\"\r\na\r\n0;last\r\n\r\n", b"a", b""),
        (b"1\r\n\n\r\n0\r\nX-T: 1\r\n\r\nrest", b"\n", b"rest"),
    ];
    for (input, data, rest) in rows {
        let (got, consumed, done) = chunked(input).unwrap();
        assert_eq!(
            (got.as_slice(), &input[consumed..], done),
            (*data, *rest, true)
        );
    }
}

#[test]
fn malformed_chunks_are_refused() {
    use BodyError::*;
    let rows: &[(&[u8], BodyError)] = &[
        (b"\r\n", ChunkSize),
        (b";x\r\n", ChunkSize),
        (b"g\r\n", ChunkSize),
        (b"0x1\r\n", ChunkSize),
        (b"-1\r\n", ChunkSize),
        (b"+1\r\n", ChunkSize),
        (b" 1\r\n", ChunkSize),
        (b"1 \r\n", ChunkSize),
        (b"1\n", ChunkSize),
        (b"1\ra", ChunkSize),
        (b"1;a\n", ChunkSize),
        (b"1;a\rb", ChunkSize),
        (b"1;\0\r\n", ChunkSize),
        (b"1\r\nab\r\n", ChunkEnd),
        (b"1\r\na\n", ChunkEnd),
        (b"1\r\na\rb", ChunkEnd),
        (b"1\r\na0\r\n\r\n", ChunkEnd),
        (b"10000000000000000\r\n", ChunkSizeOverflow),
        (b"00000000000000001\r\n", ChunkSizeOverflow),
        (b"ffffffffffffffff\r\n", TooLong),
        (b"0\r\nX : 1\r\n\r\n", Trailer),
        (b"0\r\n X: 1\r\n\r\n", Trailer),
        (b"0\r\nX: 1\n\r\n", Trailer),
        (b"0\r\nX: 1\rY: 2\r\n\r\n", Trailer),
        (b"0\r\nX: \0\r\n\r\n", Trailer),
        (b"0\r\n\n", Trailer),
        (b"0\r\nGET / HTTP/1.1\r\n\r\n", Trailer),
    ];
    for (input, error) in rows {
        assert_eq!(
            chunked(input).unwrap_err(),
            *error,
            "{:?}",
            String::from_utf8_lossy(input)
        );
    }
}

#[test]
fn sums_of_chunk_sizes_cannot_overflow() {
    let mut reader = BodyReader::new(ResponseFraming::Chunked, u64::MAX);
    let step = reader.consume(b"fffffffffffffffe\r\n").unwrap();
    assert!(step.data.is_empty() && !step.done);
    let mut reader = BodyReader::new(ResponseFraming::Chunked, 4);
    let got = read(&mut reader, [&b"3\r\nabc\r\n2\r\nde\r\n"[..]]);
    assert_eq!(got.unwrap_err(), BodyError::TooLong);
}

#[test]
fn extensions_and_trailers_are_bounded() {
    let ext = |n: usize| format!("1;{}\r\na\r\n0\r\n\r\n", "e".repeat(n));
    // The CR that ends the extension counts.
    assert!(chunked(ext(ChunkedDecoder::MAX_EXTENSION_BYTES - 1).as_bytes()).is_ok());
    let got = chunked(ext(ChunkedDecoder::MAX_EXTENSION_BYTES).as_bytes());
    assert_eq!(got.unwrap_err(), BodyError::ExtensionsTooLong);
    let many = "1;eeeeeeeeeeeeeee\r\na\r\n".repeat(1025);
    assert_eq!(
        chunked(many.as_bytes()).unwrap_err(),
        BodyError::ExtensionsTooLong
    );

    let trailer = |n: usize| format!("0\r\nX: {}\r\n\r\n", "t".repeat(n - 7));
    assert!(chunked(trailer(ChunkedDecoder::MAX_TRAILER_BYTES).as_bytes()).is_ok());
    let got = chunked(trailer(ChunkedDecoder::MAX_TRAILER_BYTES + 1).as_bytes());
    assert_eq!(got.unwrap_err(), BodyError::TrailersTooLong);
    let fields = |n: usize| format!("0\r\n{}\r\n", "X: 1\r\n".repeat(n));
    assert!(chunked(fields(ChunkedDecoder::MAX_TRAILERS).as_bytes()).is_ok());
    let got = chunked(fields(ChunkedDecoder::MAX_TRAILERS + 1).as_bytes());
    assert_eq!(got.unwrap_err(), BodyError::TrailersTooLong);
    assert_eq!(BodyError::TrailersTooLong.status(), 431);
}

#[test]
fn trailers_are_no_data_and_end_the_body() {
    let mut reader = BodyReader::new(ResponseFraming::Chunked, 10);
    let body = b"1\r\na\r\n0\r\nx-amz-checksum-crc32: AAA=\r\nB: 2\r\n\r\n";
    let (data, taken) = read(&mut reader, [&body[..]]).unwrap();
    assert_eq!((data.as_slice(), taken), (&b"a"[..], body.len()));
    assert!(reader.is_done());
}

#[test]
fn declared_lengths_stop_at_the_last_byte() {
    let mut reader = BodyReader::new(ResponseFraming::Length(5), 0);
    let (data, taken) = read(&mut reader, [&b"ab"[..], b"", b"cdeGET"]).unwrap();
    assert_eq!((data.as_slice(), taken), (&b"abcde"[..], 5));
    assert!(reader.is_done() && reader.end_of_input().is_ok());
    for framing in [ResponseFraming::None, ResponseFraming::Length(0)] {
        let mut reader = BodyReader::new(framing, 0);
        assert!(reader.is_done());
        let step = reader.consume(b"GET").unwrap();
        assert_eq!((step.data, step.consumed, step.done), (0..0, 0, true));
    }
}

#[test]
fn an_early_end_is_told_from_a_right_one() {
    let cut = |framing| BodyReader::new(framing, 9).end_of_input();
    assert_eq!(cut(ResponseFraming::Length(1)), Err(BodyError::Truncated));
    assert_eq!(cut(ResponseFraming::Chunked), Err(BodyError::Truncated));
    assert_eq!(cut(ResponseFraming::UntilClose), Ok(()));
    assert_eq!(cut(ResponseFraming::None), Ok(()));
}

#[test]
fn bodies_until_close_are_bounded() {
    let mut reader = BodyReader::new(ResponseFraming::UntilClose, 3);
    assert_eq!(read(&mut reader, [&b"abc"[..]]).unwrap().0, b"abc");
    assert_eq!(reader.consume(b"d").unwrap_err(), BodyError::TooLong);
}

/// A body in random chunks with extensions and trailers, and its plain bytes.
fn random_chunked(rng: &mut fastrand::Rng) -> (Vec<u8>, Vec<u8>) {
    let (mut coded, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..rng.usize(..8) {
        let data: Vec<u8> = (0..rng.usize(..40)).map(|_| rng.u8(..)).collect();
        plain.extend_from_slice(&data);
        match !data.is_empty() && rng.bool() {
            true => {
                coded.extend_from_slice(format!("{:x};a=b\r\n", data.len()).as_bytes());
                coded.extend_from_slice(&data);
                coded.extend_from_slice(b"\r\n");
            }
            false => write_chunk(&data, &mut coded),
        }
    }
    match rng.bool() {
        true => coded.extend_from_slice(b"0\r\nT: v\r\n\r\n"),
        false => coded.extend_from_slice(LAST_CHUNK),
    }
    (coded, plain)
}

#[test]
fn any_split_of_a_stream_gives_the_same_body() {
    for seed in 0..3_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut stream, plain) = random_chunked(&mut rng);
        let length = stream.len();
        stream.extend_from_slice(b"GET / HTTP/1.1\r\n");
        let mut pieces = Vec::new();
        let mut rest = stream.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rng.usize(1..=rest.len().min(12)));
            pieces.push(piece);
            rest = after;
        }
        let mut reader = BodyReader::new(ResponseFraming::Chunked, plain.len() as u64);
        let (data, consumed) = read(&mut reader, pieces).unwrap();
        assert_eq!((data, consumed), (plain, length), "seed {seed}");
        assert!(reader.is_done(), "seed {seed}");
    }
}

#[test]
fn damaged_streams_never_panic_nor_exceed_the_limit() {
    for seed in 0..5_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut stream, _) = random_chunked(&mut rng);
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..stream.len());
            stream[at] = rng.u8(..);
        }
        let mut reader = BodyReader::new(ResponseFraming::Chunked, 100);
        if let Ok((data, _)) = read(&mut reader, [stream.as_slice()]) {
            assert!(data.len() <= 100, "seed {seed}");
        }
    }
}

#[test]
fn pipelined_requests_come_out_one_by_one() {
    let mut stream = Vec::new();
    for n in 0..20 {
        let line = format!("PUT /{n} HTTP/1.1\r\nHost: h\r\n");
        stream.extend_from_slice(line.as_bytes());
        match n % 3 {
            0 => stream.extend_from_slice(b"\r\n"),
            1 => stream.extend_from_slice(format!("Content-Length: {n}\r\n\r\n").as_bytes()),
            _ => stream.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n"),
        }
        let body = vec![b'\n'; n];
        match n % 3 {
            0 => {}
            1 => stream.extend_from_slice(&body),
            _ => {
                write_chunk(&body, &mut stream);
                stream.extend_from_slice(LAST_CHUNK);
            }
        }
    }
    let mut rest = stream.as_slice();
    for n in 0..20 {
        let (head, taken) = RequestHead::parse(rest, &Limits::DEFAULT).unwrap().unwrap();
        assert_eq!(head.path(), format!("/{n}"));
        let mut reader = BodyReader::new(head.framing().into(), 100);
        let (body, body_taken) = read(&mut reader, [&rest[taken..]]).unwrap();
        assert_eq!(body.len(), if n % 3 == 0 { 0 } else { n });
        assert!(reader.is_done());
        rest = &rest[taken + body_taken..];
    }
    assert!(rest.is_empty());
}

#[test]
fn a_chunk_has_its_size_and_none_is_empty() {
    let mut out = Vec::new();
    write_chunk(b"", &mut out);
    assert!(out.is_empty(), "an empty chunk would end the body");
    write_chunk(&[b'x'; 26], &mut out);
    assert_eq!(out, [b"1a\r\n", &[b'x'; 26][..], b"\r\n"].concat());
}

#[test]
fn trailers_are_passed_on_without_those_of_one_connection() {
    let end = b"0\r\nDigest: a, b\r\nConnection: close\r\nX-Sum: 7\r\n\r\n";
    let mut reader = BodyReader::new(ResponseFraming::Chunked, 100);
    assert_eq!(reader.trailers(), None);
    read(&mut reader, end.chunks(3)).unwrap();
    let mut written = Vec::new();
    write_last_chunk(reader.trailers(), &mut written);
    assert_eq!(written, b"0\r\nDigest: a, b\r\nX-Sum: 7\r\n\r\n");
    for without in [None, Some(&prism_http::Headers::new())] {
        written.clear();
        write_last_chunk(without, &mut written);
        assert_eq!(written, LAST_CHUNK);
    }
}

#[test]
fn a_trailer_says_nothing_that_only_a_head_may_say() {
    let of_the_head = [
        "Host: evil",
        "Authorization: Basic eDp5",
        "cookie: admin=1",
        "X-Forwarded-For: 192.0.2.9",
        "X_Forwarded_Proto: https",
        "Content_Length: 9",
        "Transfer-Encoding: chunked",
        "If-Match: \"a\"",
        "Content-Type: text/html",
        "Proxy-Foo: 1",
    ];
    let others = [
        "X-Sum: seven",
        "Grpc-Status: 0",
        "Content-Digest: sha-256=:a:",
    ];
    let all = [&of_the_head[..], &others[..]].concat();
    let mut reader = BodyReader::new(ResponseFraming::Chunked, 9);
    let body = format!("0\r\n{}\r\n\r\n", all.join("\r\n"));
    assert!(reader.consume(body.as_bytes()).unwrap().done);
    let mut written = Vec::new();
    write_last_chunk(reader.trailers(), &mut written);
    let expected = format!("0\r\n{}\r\n\r\n", others.join("\r\n"));
    assert_eq!(String::from_utf8(written).unwrap(), expected);
}
