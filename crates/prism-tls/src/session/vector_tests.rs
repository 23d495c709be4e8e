//! RFC 8448 section 3: the application data and alerts of its handshake.
use super::*;

const CLIENT_SECRET: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
const SERVER_SECRET: &str = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
const CLIENT_DATA: &str = "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4";
const SERVER_DATA: &str = "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d";
const CLIENT_CLOSE: &str = "1703030013c9872760655666b74d7ff1153efd6db6d0b0e3";
const SERVER_CLOSE: &str = "1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9";

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// The server, whose first record was a session ticket.
fn server() -> Session {
    let direction = |secret, sequence| DirectionKeys::Tls13 {
        secret: Secret::new(&hex(secret)).unwrap(),
        sequence,
    };
    let (read, write) = (direction(CLIENT_SECRET, 0), direction(SERVER_SECRET, 1));
    let suite = Suite::Aes128Gcm;
    Session::new(SessionKeys { suite, read, write }).unwrap()
}

#[test]
fn records_are_those_of_rfc_8448() {
    let data: Vec<u8> = (0..50).collect();
    let mut server = server();
    let input = [hex(CLIENT_DATA), hex(CLIENT_CLOSE)].concat();
    let (opened, events) = open_all(&mut server, input);
    assert_eq!((opened, events), (data.clone(), vec![Event::CloseNotify]));
    let mut out = sealed(&mut server, &data);
    server.seal_close_notify(&mut out).unwrap();
    assert_eq!(out, [hex(SERVER_DATA), hex(SERVER_CLOSE)].concat());
}

#[test]
fn the_kernel_gets_the_keys_of_rfc_8448() {
    let keys = server().write_to_kernel().unwrap();
    assert_eq!(keys.key[..], hex("9f02283b6c9c07efc26bb9f2ac92e356"));
    assert_eq!(keys.nonce[..], hex("cf782b88dd83549aadf1e984"));
    assert_eq!(keys.sequence, 1);
}
