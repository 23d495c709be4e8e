//! Medians, percentiles and deviations.

use crate::rows::Values;

/// Statistics of many times, in µs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stats {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) stddev: f64,
}

impl Stats {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 values")]
    pub(crate) fn of(values: Vec<f64>) -> Self {
        let values = ascending(values.into_iter());
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        Self {
            p50: rank(&values, 50),
            p99: rank(&values, 99),
            stddev: variance.sqrt(),
        }
    }
}

/// The finite ones of `values`, ascending.
pub(crate) fn ascending(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The value that `percent` of all values do not exceed; 0 if there are none.
pub(crate) fn rank(ascending: &[f64], percent: usize) -> f64 {
    let at = (ascending.len() * percent).div_ceil(100).saturating_sub(1);
    ascending.get(at).copied().unwrap_or_default()
}

/// The value in the middle, or the mean of both; NaN if there are none.
pub(crate) fn median(ascending: &[f64]) -> f64 {
    let at = |n: usize| ascending.get(n).copied().unwrap_or(f64::NAN);
    let half = ascending.len() / 2;
    match ascending.len() % 2 {
        1 => at(half),
        _ => f64::midpoint(at(half.wrapping_sub(1)), at(half)),
    }
}

/// Values with owned names, as rows have them.
pub(crate) fn named<const N: usize>(values: [(&str, f64); N]) -> Values {
    values.map(|(name, value)| (name.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]
    use super::*;

    #[test]
    fn a_median_is_in_the_middle_or_between_two() {
        assert_eq!(median(&[1.0, 2.0]), 1.5);
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(rank(&values, 50), 100.0);
        assert_eq!(rank(&values, 99), 198.0);
        assert_eq!(rank(&[], 99), 0.0);
        let stats = Stats::of(vec![1.0, 3.0, f64::NAN]);
        assert_eq!((stats.p50, stats.stddev), (1.0, 1.0));
    }
}
