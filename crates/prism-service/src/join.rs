//! Runs several futures on one thread.

/// Runs a few futures at the same time on this thread. Returns their results in the same order.
pub async fn join_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = futures
        .into_iter()
        .map(|future| (Some(Box::pin(future)), None))
        .collect();
    std::future::poll_fn(|context| {
        let mut all = true;
        for (future, result) in &mut running {
            let Some(pinned) = future else { continue };
            match pinned.as_mut().poll(context) {
                std::task::Poll::Ready(value) => {
                    *result = Some(value);
                    *future = None;
                }
                std::task::Poll::Pending => all = false,
            }
        }
        match all {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    running
        .into_iter()
        .filter_map(|(_, result)| result)
        .collect()
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
