//! The clients and nodes that a worker serves at a time.
//!
//! Sessions begin and end with every hand-off, and nothing needs their results. So they are only
//! counted: a `JoinSet` would keep a list, and wake its owner at each end.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;

/// The sessions of one worker.
#[derive(Default)]
pub(crate) struct OpenSessions {
    open: Cell<usize>,
    none_left: Notify,
}

impl OpenSessions {
    /// Runs a session in a task of its own.
    pub(crate) fn run(self: &Rc<Self>, session: impl Future<Output = ()> + 'static) {
        self.open.set(self.open.get() + 1);
        let open = Open(self.clone());
        // Boxed, because `spawn_local` moves a task some six times before it begins.
        let session = Box::pin(session);
        tokio::task::spawn_local(async move {
            let _open = open;
            session.await;
        });
    }

    /// Waits until all sessions have ended.
    pub(crate) async fn ended(&self) {
        while self.open.get() > 0 {
            self.none_left.notified().await;
        }
    }
}

/// An open session. A panic also drops it.
struct Open(Rc<OpenSessions>);

impl Drop for Open {
    fn drop(&mut self) {
        let left = self.0.open.get().saturating_sub(1);
        self.0.open.set(left);
        if left == 0 {
            self.0.none_left.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::time::Duration;

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn the_last_one_ends_the_wait_also_when_it_panics() {
        let (local, sessions) = (LocalSet::new(), Rc::new(OpenSessions::default()));
        let work = async {
            sessions.ended().await;
            for n in 0..3 {
                sessions.run(async move {
                    for _ in 0..n {
                        yield_now().await;
                    }
                    assert!(n != 1, "one of them panics");
                });
            }
            assert_eq!(sessions.open.get(), 3);
            sessions.ended().await;
            assert_eq!(sessions.open.get(), 0);
        };
        let limit = Duration::from_secs(10);
        local
            .run_until(async { tokio::time::timeout(limit, work).await.unwrap() })
            .await;
    }
}
