//! A plain client.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The time limit of an answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// One connection.
pub struct Client {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Client {
    /// Connects to a node.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        let answers = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, answers })
    }

    /// Sends a command.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&mut self, arguments: &[&[u8]]) -> Result<()> {
        let mut command = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            command.extend(format!("${}\r\n", argument.len()).into_bytes());
            command.extend([argument, &b"\r\n"[..]].concat());
        }
        self.stream.write_all(&command)
    }

    /// The next answer, without its type; `nil` for no value.
    ///
    /// # Errors
    /// `InvalidData` if it is no single value, `WouldBlock` if none comes within 20 s, or the
    /// kernel's.
    pub fn answer(&mut self) -> Result<Vec<u8>> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").unwrap_or_default();
        match line.split_at_checked(1) {
            Some(("$", "-1")) => Ok(b"nil".to_vec()),
            Some(("$", bytes)) => {
                let bytes: usize = bytes.parse().map_err(|_| malformed("a length"))?;
                let mut value = vec![0; bytes + 2];
                self.answers.read_exact(&mut value)?;
                value.truncate(bytes);
                Ok(value)
            }
            Some(("+" | "-" | ":", text)) => Ok(text.into()),
            _ => Err(malformed("an answer")),
        }
    }

    /// Sends a command, and waits for its answer.
    ///
    /// # Errors
    /// As for [`Self::send`] and [`Self::answer`].
    pub fn call(&mut self, arguments: &[&[u8]]) -> Result<Vec<u8>> {
        self.send(arguments)?;
        self.answer()
    }

    /// A field of the information about the node that has the connection; empty without one.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub fn info(&mut self, field: &str) -> Result<String> {
        let info = self.call(&[b"INFO"])?;
        let info = String::from_utf8_lossy(&info);
        let fields = info.lines().filter_map(|line| line.split_once(':'));
        let mut found = fields.filter(|(name, _)| *name == field);
        Ok(found
            .next()
            .map_or_else(String::new, |(_, value)| value.to_owned()))
    }
}

fn malformed(text: &str) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}
