//! The time that certificates are still valid, as operators are told of it.

use std::path::{Path, PathBuf};

use crate::certificate::{Certificate, date};
use crate::error::PkiError;

/// A certificate that ends within this time is named.
const SOON_DAYS: u64 = 30;
const DAY_S: u64 = 86_400;
/// A certificate by ACME is named in this last part of its life. Its renewal has then failed for
/// half of the time that it has.
const LAST_PART: u64 = 6;

/// Whether a certificate has to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Not yet.
    Valid,
    /// Within the time in which it is usually renewed.
    EndsSoon,
    /// It is refused.
    Ended,
}

/// A certificate with its file.
#[derive(Clone, Debug)]
pub struct Dated {
    /// The file.
    pub file: PathBuf,
    subject: String,
    /// Its end, in seconds since 1970.
    pub end_s: u64,
    /// Within this time before its end it ends soon.
    soon_s: u64,
}

impl Dated {
    /// A certificate in a file, which an operator renews.
    pub fn new(file: PathBuf, certificate: Certificate) -> Self {
        Self {
            file,
            subject: certificate.subject,
            end_s: certificate.end_s,
            soon_s: SOON_DAYS * DAY_S,
        }
    }

    /// A certificate by ACME, which the cluster renews itself. `source` stands for its file.
    pub fn by_acme(source: PathBuf, certificate: Certificate) -> Self {
        let life_s = certificate.end_s.saturating_sub(certificate.begin_s);
        let names = certificate.names.join(", ");
        Self {
            subject: names,
            soon_s: life_s / LAST_PART,
            ..Self::new(source, certificate)
        }
    }

    /// All certificates in a file.
    ///
    /// # Errors
    /// As for [`Certificate::read_all`].
    pub fn all_in(file: &Path) -> Result<Vec<Self>, PkiError> {
        let found = Certificate::read_all(file)?.into_iter();
        Ok(found.map(|found| Self::new(file.into(), found)).collect())
    }

    /// The certificate of a server, which is the first of its file.
    ///
    /// # Errors
    /// As for [`Certificate::read_all`].
    pub fn first_in(file: &Path) -> Result<Option<Self>, PkiError> {
        Ok(Self::all_in(file)?.into_iter().next())
    }

    /// Whether it has to be renewed at `now_s`, in seconds since 1970.
    pub fn term(&self, now_s: u64) -> Term {
        match self.end_s.checked_sub(now_s) {
            None | Some(0) => Term::Ended,
            Some(left_s) if left_s < self.soon_s => Term::EndsSoon,
            Some(_) => Term::Valid,
        }
    }

    /// When it ends, as in "/etc/prism/be0.crt (CN=be0) ends on 2026-12-01, in 7 days".
    pub fn said(&self, now_s: u64) -> String {
        let file = self.file.display();
        let subject = &self.subject;
        let end = date(self.end_s);
        match self.end_s.checked_sub(now_s) {
            None => format!("{file} ({subject}) has ended on {end}"),
            Some(left_s) => {
                let days = left_s / DAY_S;
                format!("{file} ({subject}) ends on {end}, in {days} days")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_named_thirty_days_before_its_end() {
        let certificate = Dated {
            file: "be0.crt".into(),
            subject: "CN=be0".into(),
            end_s: 100 * DAY_S,
            soon_s: SOON_DAYS * DAY_S,
        };
        let of = |now_s| (certificate.term(now_s), certificate.said(now_s));
        let soon = "be0.crt (CN=be0) ends on 1970-04-11, in";
        assert_eq!(of(70 * DAY_S), (Term::Valid, format!("{soon} 30 days")));
        let later = (Term::EndsSoon, format!("{soon} 29 days"));
        assert_eq!(of(70 * DAY_S + 1), later);
        let last = (Term::EndsSoon, format!("{soon} 0 days"));
        assert_eq!(of(100 * DAY_S - 1), last);
        let ended = "be0.crt (CN=be0) has ended on 1970-04-11".to_owned();
        assert_eq!(of(100 * DAY_S + 1), (Term::Ended, ended));
    }
}
