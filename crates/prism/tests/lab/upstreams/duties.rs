//! An operator takes servers out of service and gives them back, by one command at a frontend.

use std::io::Read;
use std::process::{Output, Stdio};
use std::time::Instant;

use super::behind::Behind;
use super::curl;
use super::watched::{SERVER, alerts, all_say, ctl, doctor, health_becomes, text};
use crate::support::turn;

/// The server of `be0`, as operators call it.
const FIRST: &str = "be0/127.0.0.1:9000";
const SECOND: &str = "be1/127.0.0.1:9000";
/// Requests in which every server that gets some has its turn.
const MANY: usize = 12;

/// `prism ctl server`, which asks fe0.
fn server(behind: &Behind, words: &[&str]) -> Output {
    ctl(behind, &[&["server"], words].concat())
}

fn set(behind: &Behind, words: &[&str]) -> String {
    let output = server(behind, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    text(&output)
}

fn refused(behind: &Behind, words: &[&str]) -> String {
    let output = server(behind, words);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The status and the server of an answer, of a client with this cookie.
fn answered_by(behind: &Behind, cookie: &str) -> String {
    let url = behind.cluster.lab.endpoint();
    let form = "%{http_code} %header{X-Backend}";
    curl(
        behind,
        &format!("{url}/bytes?n=100"),
        &["-o", "/dev/null", "-w", form, "-H", cookie],
    )
}

/// All of `MANY` requests of such a client have this answer.
fn all_are_answered_by(behind: &Behind, cookie: &str, expected: &str) {
    for _ in 0..MANY {
        assert_eq!(answered_by(behind, cookie), expected, "{cookie}");
    }
}

#[test]
fn operators_drain_servers_take_them_down_and_give_them_back() {
    let Some(_turn) = turn() else { return };
    let mut behind = Behind::up(|spec| spec.backends = 2, "cookie = \"SRV\"\n");
    let (own, others, nobodys) = ("Cookie: SRV=be0", "Cookie: SRV=be1", "X-Cookie: none");
    assert_eq!(answered_by(&behind, own), "200 be0");

    // Its own clients stay.
    assert_eq!(set(&behind, &["drain", FIRST]), format!("{FIRST}: drain\n"));
    all_say(&behind, "be0", "draining", Instant::now());
    all_are_answered_by(&behind, own, "200 be0");
    all_are_answered_by(&behind, nobodys, "200 be1");
    assert!(alerts(&health_becomes(&behind, 0, "healthy")).is_empty());
    assert!(doctor(&behind, "be0").contains("is draining by `prism ctl server`"));

    // Nobody stays, but what is under way ends by itself.
    let url = behind.cluster.lab.endpoint();
    let mut ticks = behind.cluster.lab.command("client", "curl").unwrap();
    ticks.args(["--silent", "--no-buffer", "-H", own]);
    ticks
        .arg(format!("{url}/ticks?n=60"))
        .stdout(Stdio::piped());
    let mut ticks = ticks.spawn().unwrap();
    let mut events = ticks.stdout.take().unwrap();
    events.read_exact(&mut [0; 8]).unwrap();
    let waited = set(&behind, &["down", FIRST, "--wait"]);
    assert_eq!(waited, format!("{FIRST}: down\nnothing is under way\n"));
    let mut rest = String::new();
    events.read_to_string(&mut rest).unwrap();
    assert!(
        ticks.wait().unwrap().success() && rest.contains("id: 60\n"),
        "{rest}"
    );
    all_say(&behind, "be0", "down", Instant::now());
    all_are_answered_by(&behind, own, "200 be1");

    // A restart, a reload and an upgrade of the backend change nothing.
    behind.cluster.lab.restart("be0").unwrap();
    let later = |config: &mut prism_config::ConfigFile| config.limits.idle_timeout_s += 1;
    behind.cluster.lab.reload(later).unwrap();
    all_say(&behind, "be0", "down", Instant::now());
    let taken_over = ctl(&behind, &["take-over", "be0"]);
    assert!(taken_over.status.success(), "{taken_over:?}");
    all_say(&behind, "be0", "down", Instant::now());
    all_are_answered_by(&behind, own, "200 be1");

    // Without a server there is no answer, and no server is tried nevertheless.
    let before = behind.apps.count("be0") + behind.apps.count("be1");
    set(&behind, &["down", SECOND]);
    all_say(&behind, "be1", "down", Instant::now());
    for cookie in [own, others, nobodys] {
        assert_eq!(answered_by(&behind, cookie), "503 ");
    }
    assert_eq!(behind.apps.count("be0") + behind.apps.count("be1"), before);
    let document = health_becomes(&behind, 1, "degraded");
    let expected = "critical: The upstream / has no healthy server";
    assert_eq!(alerts(&document), [expected]);

    // All servers of a backend at once; the checks have gone on.
    behind.apps.kill("be0");
    let given_back = set(&behind, &["up", "be0"]);
    assert_eq!(given_back.lines().count(), 3, "{given_back}");
    all_say(&behind, "be0", "unhealthy", Instant::now());
    behind.apps.start("be0");
    all_say(&behind, "be0", "healthy", Instant::now());
    set(&behind, &["up", SECOND]);
    all_say(&behind, "be1", "healthy", Instant::now());
    health_becomes(&behind, 0, "healthy");
    assert_eq!(answered_by(&behind, own), "200 be0");
    assert_eq!(answered_by(&behind, others), "200 be1");
}

#[test]
fn a_name_that_means_no_server_or_several_changes_nothing() {
    let Some(_turn) = turn() else { return };
    let mut behind = Behind::up(|spec| spec.backends = 2, "");
    let error = refused(&behind, &["down", SERVER]);
    let fix = format!("is another server at each backend; use {FIRST}, {SECOND}");
    assert!(error.contains(&fix), "{error}");
    let error = refused(&behind, &["down", "be7"]);
    assert!(error.contains("no server is called \"be7\""), "{error}");
    // A backend commands its own servers only.
    let config = prism_config::ConfigFile::load(&behind.cluster.lab.config_path()).unwrap();
    let socket = config.parts()[0].admin_socket("be1");
    let socket = socket.to_str().unwrap();
    let error = refused(&behind, &["down", FIRST, "--socket", socket]);
    let fix = "be1 is no frontend; give the command at be0 or at a frontend";
    assert!(error.contains(fix), "{error}");
    set(&behind, &["drain", SECOND, "--socket", socket]);
    all_say(&behind, "be1", "draining", Instant::now());
    // One that does not answer is named.
    behind.cluster.lab.stop("be0").unwrap();
    let error = refused(&behind, &["down", FIRST]);
    assert!(
        error.contains("nothing has changed: be0: it does not answer"),
        "{error}"
    );
}
