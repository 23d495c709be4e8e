//! A file of cases: requests that people write, and answers that the test records.
//!
//! ```text
//! case NAME
//! ways here moved relayed      (default: one new connection to the frontend)
//! over tls13                   (or tls12)
//! settle 1200                  (milliseconds after the case)
//! serve                        (the server reads one request and answers it)
//! v a line of its answer
//! > a line of the client's request
//! : here=stays moved=moved     (recorded: ways with these answers, and what happened)
//! < a line of the answers
//! | a line of the request that the server got
//! = a fact
//! ```
//!
//! - `>`, `v`, `<` and `|` are lines that end with CRLF. With a dot (`>.`) nothing is added.
//! - `>>` is the first line of another request that is sent together with the one before.
//! - Bytes beyond printable ASCII are `\r`, `\n`, `\t`, `\\` and `\xNN`.
//! - `$(...)` in a request is replaced; `Values::value` has the list.
//! - Steps of the client: `wait METHOD...` (final answers; the default after the last request),
//!   `interim`, `quiet` (nothing comes), `end` (all until the end), `bytes N`, `shut` (no more
//!   will be sent), `reset`, `pause MS`, `done` (no answer is to come).
//! - Steps of the server: `serve head` (it answers before it reads the body), `body` (it reads
//!   it now), `take N` (bytes behind an upgrade), `sleep MS`, `close`,
//!   `abort` (a reset).

use std::path::{Path, PathBuf};
use std::time::Duration;

/// A way in which a request reaches the node that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A new connection to the frontend, over IPv4.
    Direct,
    /// A connection that a backend has already.
    Here,
    /// A new connection that can move.
    Moved,
    /// A new connection that cannot move.
    Relayed,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::Direct, Self::Here, Self::Moved, Self::Relayed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Here => "here",
            Self::Moved => "moved",
            Self::Relayed => "relayed",
        }
    }

    fn named(name: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        let way = all.find(|way| way.name() == name);
        way.unwrap_or_else(|| panic!("no way is called {name:?}"))
    }
}

/// TLS of a case's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Plain,
    Tls12,
    Tls13,
}

/// A step of the client.
#[derive(Clone, Debug)]
pub enum Step {
    /// Requests that are sent together, each with its lines.
    Send(Vec<Vec<String>>),
    /// Final answers to requests of these methods.
    Answers(Vec<String>),
    Interim,
    Quiet,
    End,
    Bytes(usize),
    Shut,
    Reset,
    Pause(Duration),
}

/// A step of the server.
#[derive(Clone, Debug)]
pub enum ServerStep {
    ReadHead,
    ReadBody,
    Take(usize),
    Send(String),
    Pause(Duration),
    Close,
    Abort,
}

/// A case of a file.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub ways: Vec<Way>,
    pub over: Over,
    pub settle: Duration,
    pub steps: Vec<Step>,
    /// The steps for each request that reaches the server.
    pub serves: Vec<Vec<ServerStep>>,
    /// The lines that people write.
    text: Vec<String>,
    pub recorded: Vec<String>,
}

impl Case {
    fn new(name: &str, line: &str) -> Self {
        Self {
            name: name.to_owned(),
            ways: vec![Way::Direct],
            over: Over::Plain,
            settle: Duration::ZERO,
            steps: Vec::new(),
            serves: Vec::new(),
            text: vec![line.to_owned()],
            recorded: Vec::new(),
        }
    }

    /// Takes another line.
    fn push(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if matches!(word, ":" | "<" | "<." | "|" | "|." | "=") {
            self.recorded.push(line.to_owned());
            return;
        }
        self.text.push(line.to_owned());
        let number = || rest.parse::<u64>().unwrap_or_else(|_| panic!("{line:?}"));
        match word {
            "#" | "" => {}
            "done" => self.steps.push(Step::Pause(Duration::ZERO)),
            "ways" => self.ways = rest.split(' ').map(Way::named).collect(),
            "over" if rest == "tls12" => self.over = Over::Tls12,
            "over" if rest == "tls13" => self.over = Over::Tls13,
            "settle" => self.settle = Duration::from_millis(number()),
            ">" | ">." | ">>" => self.push_request(word, rest),
            "wait" => self.push_wait(rest),
            "interim" => self.steps.push(Step::Interim),
            "quiet" => self.steps.push(Step::Quiet),
            "end" => self.steps.push(Step::End),
            "bytes" => self.steps.push(Step::Bytes(number().try_into().unwrap())),
            "shut" => self.steps.push(Step::Shut),
            "reset" => self.steps.push(Step::Reset),
            "pause" => self
                .steps
                .push(Step::Pause(Duration::from_millis(number()))),
            "serve" => {
                self.serves.push(vec![ServerStep::ReadHead]);
                if rest.is_empty() {
                    self.push_served(ServerStep::ReadBody);
                }
            }
            "v" => self.push_served(ServerStep::Send(format!("{rest}\\r\\n"))),
            "v." => self.push_served(ServerStep::Send(rest.to_owned())),
            "body" => self.push_served(ServerStep::ReadBody),
            "take" => self.push_served(ServerStep::Take(number().try_into().unwrap())),
            "sleep" => self.push_served(ServerStep::Pause(Duration::from_millis(number()))),
            "close" => self.push_served(ServerStep::Close),
            "abort" => self.push_served(ServerStep::Abort),
            _ => panic!("{}: no step is called {line:?}", self.name),
        }
    }

    fn push_request(&mut self, word: &str, rest: &str) {
        let line = match word {
            ">." => rest.to_owned(),
            _ => format!("{rest}\\r\\n"),
        };
        if let Some(Step::Send(requests)) = self.steps.last_mut() {
            match word {
                ">>" => requests.push(vec![line]),
                _ => requests.last_mut().unwrap().push(line),
            }
        } else {
            self.steps.push(Step::Send(vec![vec![line]]));
        }
    }

    fn push_wait(&mut self, methods: &str) {
        let methods = match methods {
            "" => self.sent_methods(),
            _ => methods.split(' ').map(str::to_owned).collect(),
        };
        self.steps.push(Step::Answers(methods));
    }

    /// The methods of the last requests.
    fn sent_methods(&self) -> Vec<String> {
        let Some(Step::Send(requests)) = self.steps.last() else {
            panic!("{}: no request is before its answers", self.name);
        };
        let method = |lines: &Vec<String>| lines[0].split(' ').next().unwrap().to_owned();
        requests.iter().map(method).collect()
    }

    fn push_served(&mut self, step: ServerStep) {
        let Some(steps) = self.serves.last_mut() else {
            panic!("{}: no `serve`", self.name);
        };
        match (steps.last_mut(), step) {
            // Lines are sent together.
            (Some(ServerStep::Send(lines)), ServerStep::Send(line)) => lines.push_str(&line),
            (_, step) => steps.push(step),
        }
    }

    /// The case is whole.
    fn finish(&mut self) {
        if let Some(Step::Send(_)) = self.steps.last() {
            self.push_wait("");
        }
    }
}

/// A file of cases.
pub struct Script {
    path: PathBuf,
    /// The lines before the first case.
    preamble: Vec<String>,
    pub cases: Vec<Case>,
}

impl Script {
    /// The file of this name beside this one.
    pub fn load(name: &str) -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/corpus");
        let path = directory.join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        let mut preamble = Vec::new();
        let mut cases: Vec<Case> = Vec::new();
        for line in text.lines() {
            match (line.strip_prefix("case "), cases.last_mut()) {
                (Some(name), _) => cases.push(Case::new(name, line)),
                (None, Some(case)) => case.push(line),
                (None, None) => preamble.push(line.to_owned()),
            }
        }
        cases.iter_mut().for_each(Case::finish);
        let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None, "a name stands twice in {name}");
        Self {
            path,
            preamble,
            cases,
        }
    }

    /// Writes the file with these records in place of those of the cases.
    pub fn write(&self, records: &[Vec<String>]) {
        let mut lines = self.preamble.clone();
        for (case, recorded) in self.cases.iter().zip(records) {
            let is_blank = |line: &&String| line.trim().is_empty();
            let blank = case.text.iter().rev().take_while(is_blank).count();
            lines.extend_from_slice(&case.text[..case.text.len() - blank]);
            lines.extend_from_slice(recorded);
            lines.push(String::new());
        }
        lines.pop();
        std::fs::write(&self.path, lines.join("\n") + "\n").unwrap();
    }
}
