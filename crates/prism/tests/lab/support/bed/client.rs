//! A client that fetches objects by their numbers.

use std::io;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::super::client::{Answer, Client, signed};
use super::super::eventually;
use super::{Bed, content, path};
use prism_signer::Signer;

/// One keep-alive connection to the service.
pub struct NumberedClient {
    client: Client,
    signer: Signer,
    host: String,
}

impl Deref for NumberedClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for NumberedClient {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl NumberedClient {
    pub fn new(bed: &Bed, client: Client) -> Self {
        Self {
            client,
            signer: bed.new_signer(),
            host: bed.service.to_string(),
        }
    }

    /// Sends a request, and reads its answer. An end before the answer is an error.
    pub fn request(&mut self, method: &str, target: &str, body: &[u8]) -> io::Result<Answer> {
        let bytes = self.signed(method, target, body);
        self.client.try_call(&bytes)
    }

    /// Fetches object `n`, which has to be right.
    pub fn get(&mut self, n: usize) {
        if let Err(fault) = self.try_get(n) {
            panic!("{fault}");
        }
    }

    /// Fetches object `n`. An error says what is wrong with the answer.
    pub fn try_get(&mut self, n: usize) -> Result<(), String> {
        match self.request("GET", &path(n), b"") {
            Err(error) => Err(format!("object {n}: {error}")),
            Ok(answer) if answer.status() != 200 => {
                Err(format!("object {n}: {} {}", answer.status(), answer.text()))
            }
            Ok(answer) if answer.body != content(n) => Err(format!("object {n}: other bytes")),
            Ok(_) => Ok(()),
        }
    }

    /// Fetches an object of `host` until the connection is there: the first requests after
    /// a start may be relayed.
    pub fn get_from(&mut self, bed: &Bed, host: &str) {
        let address = bed.address_like(host, self.local().ip());
        eventually("a hand-off", Duration::from_secs(5), || {
            self.get(bed.object_of(host));
            let flow = bed.flow_of(self.local());
            flow.is_some_and(|known| known.owner.via == address)
        });
    }

    /// The bytes of a signed request.
    pub fn signed(&self, method: &str, target: &str, body: &[u8]) -> Vec<u8> {
        signed(&self.signer, &self.host, method, target, body).unwrap()
    }
}
