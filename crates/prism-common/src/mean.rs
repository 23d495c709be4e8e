//! A mean of measurements that follows a change.

/// The number of later values after which one has the weight 1/e.
const MEMORY: f64 = 256.0;

/// A weighted mean in which older values count less.
#[derive(Clone, Debug, Default)]
pub struct Mean {
    weight: f64,
    sum: f64,
}

impl Mean {
    /// Adds the newest value.
    pub fn add(&mut self, value: f64) {
        let keep = (-1.0 / MEMORY).exp();
        (self.weight, self.sum) = (self.weight * keep, self.sum * keep);
        self.weigh(1.0, value);
    }

    /// Adds a value of this weight; the newest value has 1.
    pub fn weigh(&mut self, weight: f64, value: f64) {
        self.weight += weight;
        self.sum += weight * value;
    }

    /// The mean; `None` without a value.
    pub fn get(&self) -> Option<f64> {
        self.of_at_least(f64::MIN_POSITIVE)
    }

    /// The mean, if the values have at least this weight.
    pub fn of_at_least(&self, weight: f64) -> Option<f64> {
        (self.weight >= weight).then(|| self.sum / self.weight)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_new_counts_more() {
        let mut mean = Mean::default();
        assert_eq!(mean.get(), None);
        (0..1_000).for_each(|_| mean.add(10.0));
        assert!((mean.get().unwrap() - 10.0).abs() < 1e-6);
        (0..1_000).for_each(|_| mean.add(20.0));
        assert!((mean.get().unwrap() - 20.0).abs() < 0.5);
    }
}
