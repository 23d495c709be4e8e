//! Connections and relay streams as sources of bytes.

use std::io;

use prism_common::input::Input;

use crate::{Connection, RelayStream};

impl Input for Connection {
    fn buffered(&self) -> &[u8] {
        Connection::buffered(self)
    }

    fn consume(&mut self, n: usize) {
        Connection::consume(self, n);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        Connection::fill(self).await
    }

    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        Connection::read(self, room).await
    }
}

impl Input for RelayStream {
    fn buffered(&self) -> &[u8] {
        RelayStream::buffered(self)
    }

    fn consume(&mut self, n: usize) {
        RelayStream::consume(self, n);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        RelayStream::fill(self).await
    }
}
