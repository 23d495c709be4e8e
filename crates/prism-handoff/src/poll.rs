//! A look at work that may be done already.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Polls `work` once. If it is pending, it wakes the calling task later.
pub(crate) async fn poll_once<F: Future + ?Sized>(mut work: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await
}
