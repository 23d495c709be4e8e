//! The share of requests for each object, by its rank, as in YCSB.

use std::fmt;
use std::str::FromStr;

/// The distribution of requests over objects.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Popularity {
    /// The same for all.
    Uniform,
    /// Zipf's law: the n-th object has a share in proportion to n to the power of minus this.
    Zipf(f64),
    /// One object has all requests.
    Single,
}

impl Popularity {
    /// The share of each rank and all before it: ascending, and 1 at the end.
    pub(crate) fn shares(self, objects: usize) -> Vec<f64> {
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52 objects")]
        let weight = |rank: usize| match self {
            Self::Uniform => 1.0,
            Self::Zipf(theta) => (rank as f64).powf(-theta),
            Self::Single if rank == 1 => 1.0,
            Self::Single => 0.0,
        };
        let all: f64 = (1..=objects).map(weight).sum();
        let mut sum = 0.0;
        (1..=objects)
            .map(|rank| {
                sum += weight(rank) / all;
                if rank == objects { 1.0 } else { sum }
            })
            .collect()
    }
}

impl fmt::Display for Popularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(theta) => write!(f, "zipf-{theta}"),
            Self::Single => f.write_str("single"),
        }
    }
}

impl FromStr for Popularity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("{text:?} is none of uniform, zipf-0.1 to zipf-5, single");
        match text {
            "uniform" => Ok(Self::Uniform),
            "single" => Ok(Self::Single),
            _ => {
                let theta = text.strip_prefix("zipf-").ok_or_else(fault)?;
                let theta: f64 = theta.parse().map_err(|_| fault())?;
                let is_sane = (0.1..=5.0).contains(&theta);
                is_sane.then_some(Self::Zipf(theta)).ok_or_else(fault)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::float_cmp)]
    use super::*;

    #[test]
    fn shares_follow_the_law_and_end_with_one() {
        let shares = Popularity::Zipf(1.0).shares(4);
        // 1, 1/2, 1/3 and 1/4 of 25/12.
        for (share, law) in shares.iter().zip([0.48, 0.72, 0.88, 1.0]) {
            assert!((share - law).abs() < 1e-9, "{shares:?}");
        }
        assert_eq!(Popularity::Uniform.shares(4), [0.25, 0.5, 0.75, 1.0]);
        assert_eq!(Popularity::Single.shares(3), [1.0, 1.0, 1.0]);
        assert_eq!(Popularity::Zipf(1.2).shares(1000)[999], 1.0);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["uniform", "zipf-0.9", "zipf-1.2", "single"] {
            assert_eq!(name.parse::<Popularity>().unwrap().to_string(), name);
        }
        for wrong in ["zipf", "zipf-", "zipf-0", "zipf-NaN", "zipf-9", ""] {
            assert!(wrong.parse::<Popularity>().is_err(), "{wrong}");
        }
    }
}
