//! Documents that cost memory or time: their bounds hold, and other keys are served meanwhile.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::time::Duration;

use data_encoding::BASE64;
use prism_s3::access::Rights;
use prism_s3::hashes::Hashes;
use prism_service::{Input, Io, join_all};
use rustix::time::{ClockId, clock_gettime};

use crate::support::{ADMIN, Server, head_of};

const DELETE: &str = "POST /bkt?delete";
/// Longest list of keys.
const LIST_BYTES: usize = 6 << 20;
/// Bytes of memory for the documents of one key.
const SHARE_BYTES: usize = 16 << 20;
const SENDERS: usize = 20;

/// A client that sends a long document but its last byte. It counts what the server has taken.
struct SlowSender<'t> {
    left: usize,
    buffered: usize,
    taken: &'t Cell<usize>,
    written: Vec<u8>,
}

/// White space, which each document may have.
static PIECE: [u8; 64 << 10] = [b' '; 64 << 10];

impl Input for SlowSender<'_> {
    fn buffered(&self) -> &[u8] {
        &PIECE[..self.buffered]
    }

    fn consume(&mut self, n: usize) {
        self.buffered -= n;
        self.taken.set(self.taken.get() + n);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        if self.left == 0 {
            return std::future::pending().await;
        }
        let more = self.left.min(PIECE.len() - self.buffered);
        self.left -= more;
        self.buffered += more;
        Ok(more)
    }
}

impl Io for SlowSender<'_> {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written.extend_from_slice(bytes);
        Ok(())
    }

    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes).await
    }

    async fn send_file(&mut self, _: &File, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A list of keys to delete, and its `Content-MD5`.
fn list(keys: &[String]) -> (String, String) {
    let objects = keys
        .iter()
        .map(|key| format!("<Object><Key>{key}</Key></Object>"));
    let body = format!("<Delete>{}</Delete>", objects.collect::<String>());
    let mut hashes = Hashes::new(false);
    hashes.update(body.as_bytes());
    let md5 = BASE64.encode(&hashes.finish().0);
    (body, md5)
}

#[test]
fn slow_senders_of_one_key_take_its_share_of_memory_and_no_more() {
    let server = Server::alone();
    server.send("PUT /bkt", &[], &[]);
    let rights = ["slow", "quick"].map(|key| (key, "bkt", Rights::WRITE));
    server.set_rights(&rights);
    let taken = Cell::new(0);
    let answers = RefCell::new(Vec::new());
    let (body, md5) = list(&["k".to_owned()]);
    let md5 = [("Content-MD5", md5.as_str())];
    let delete = |key| server.answer(Some(key), DELETE, &md5, body.as_bytes());
    let slow_sender = || async {
        let mut io = SlowSender {
            left: LIST_BYTES - 1,
            buffered: 0,
            taken: &taken,
            written: Vec::new(),
        };
        let head = head_of(Some("slow"), DELETE, &md5, LIST_BYTES);
        server.serve(head, &mut io).await;
        let answer = String::from_utf8(io.written).unwrap();
        answers.borrow_mut().push(answer);
    };
    let fitting = SHARE_BYTES / LIST_BYTES;
    let others = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let quick = delete("quick").await;
        assert_eq!(quick.status, 200, "{}", quick.text());
        while answers.borrow().len() < SENDERS - fitting {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for answer in answers.borrow().iter() {
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            assert!(answer.contains("<Code>SlowDown<"), "{answer}");
            assert!(answer.contains("Retry-After: 1\r\n"), "{answer}");
        }
        // A share of the memory is left.
        assert_eq!(delete("slow").await.status, 200);
    };
    server.run(async {
        let slow_senders = (0..SENDERS).map(|_| slow_sender()).collect();
        tokio::select! {
            _ = join_all(slow_senders) => panic!("a document was complete"),
            () = others => {}
        }
    });
    assert_eq!(taken.get(), fitting * (LIST_BYTES - 1));
}

/// Processor time of one turn that only decisions take.
const TURN: Duration = Duration::from_micros(200);

/// The processor time of this thread so far. It stands still while other programs have the
/// processor.
fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

#[test]
fn many_decisions_by_a_costly_policy_let_other_work_go_on() {
    let server = Server::alone();
    server.send("PUT /bkt", &[], &[]);
    let policy = format!(
        "{{\"Statement\":{{\"Effect\":\"Deny\",\"Principal\":\"*\",\"Action\":\"*\",\
         \"Resource\":[\"arn:aws:s3:::bkt/*{0}b\",\"arn:aws:s3:::bkt/*{0}b\"]}}}}",
        "a".repeat(511)
    );
    let put = server.send("PUT /bkt?policy", &[], policy.as_bytes());
    assert_eq!(put.status, 204, "{}", put.text());
    let keys: Vec<String> = (0..400)
        .map(|n| format!("{}{n:04}", "a".repeat(1020)))
        .collect();
    let (body, md5) = list(&keys);
    let md5 = [("Content-MD5", md5.as_str())];
    // Other work had to wait for so many turns of costly decisions.
    let turns = Cell::new(0);
    let other_work = async {
        loop {
            let before = thread_cpu();
            tokio::task::yield_now().await;
            if thread_cpu() - before > TURN {
                turns.set(turns.get() + 1);
            }
        }
    };
    server.run(async {
        tokio::select! {
            answer = server.answer(Some(ADMIN), DELETE, &md5, body.as_bytes()) => {
                assert_eq!(answer.elements("Key").len(), keys.len(), "{}", answer.text());
            }
            () = other_work => {}
        }
    });
    // A turn has a few of the 400 decisions.
    assert!(
        turns.get() >= 20,
        "the decisions came in {} turns",
        turns.get()
    );
}

#[test]
fn a_stored_policy_that_is_not_understood_denies_all_but_its_own_operations() {
    let server = Server::alone();
    server.send("PUT /bkt", &[], &[]);
    server.set_rights(&[
        ("owner", "bkt", Rights::all()),
        ("reader", "bkt", Rights::READ),
    ]);
    let policy = "{\"Statement\":{\"Effect\":\"Allow\",\"Principal\":\"*\",\"Action\":\"s3:*\",\
                  \"Resource\":\"arn:aws:s3:::bkt/*\",\"Condition\":{\"IpAddress\":null}}}";
    let status = |key: &str, start: &str| server.send_by(Some(key), start, &[], &[]).status;
    let put = server.send("PUT /bkt?policy", &[], policy.as_bytes());
    assert_eq!(put.status, 400, "{}", put.text());
    server.store_document("bkt", "policy", policy);
    for key in [ADMIN, "owner", "reader"] {
        for start in ["GET /bkt/k", "GET /bkt", "PUT /bkt/k", "DELETE /bkt/k"] {
            assert_eq!(status(key, start), 403, "{key} {start}");
        }
    }
    assert_eq!(server.send_unsigned("GET /bkt/k").status, 403);
    assert_eq!(status("reader", "GET /bkt?policy"), 403);
    assert_eq!(status("owner", "GET /bkt?policy"), 200);
    assert_eq!(status("owner", "DELETE /bkt?policy"), 204);
    assert_eq!(status("owner", "PUT /bkt/k"), 200);
}
