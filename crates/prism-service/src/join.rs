//! Runs several futures on one thread.

use std::future::poll_fn;
use std::task::Poll;

/// Runs a few futures at the same time on this thread. Returns their results in the same order.
pub async fn join_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in running.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) {
            Poll::Ready(results.drain(..).flatten().collect())
        } else {
            Poll::Pending
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn futures_run_at_the_same_time_and_answer_in_order() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let all_here = tokio::sync::Barrier::new(3);
            let meet = |n: u64| {
                let all_here = &all_here;
                async move {
                    all_here.wait().await;
                    n
                }
            };
            assert_eq!(join_all(vec![meet(3), meet(1), meet(2)]).await, [3, 1, 2]);
            let none: Vec<std::future::Ready<u8>> = Vec::new();
            assert!(join_all(none).await.is_empty());
        });
    }
}
