//! Durations as values of options, in minutes or seconds.

use std::time::Duration;

/// Parses a positive number of minutes.
pub fn parse_minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| "not a number of minutes".to_string())?;
    let duration = Duration::try_from_secs_f64(60.0 * minutes).ok().filter(|duration| !duration.is_zero());
    // Longer durations could overflow when they are added to the current time.
    let longest = Duration::from_secs(365 * 24 * 3600);
    duration
        .filter(|&duration| duration <= longest)
        .ok_or_else(|| "allowed: above 0 and at most 525600".into())
}

/// Parses a number of seconds.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "allowed: 0 or more seconds".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_positive_numbers_of_at_most_a_year() {
        assert_eq!(parse_minutes("0.5"), Ok(Duration::from_secs(30)));
        for text in ["0", "-1", "x", "", "nan", "inf", "1e9"] {
            assert!(parse_minutes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds_that_no_duration_can_hold_are_refused() {
        assert_eq!(parse_seconds("0"), Ok(Duration::ZERO));
        for text in ["-1", "x", "", "nan", "inf", "1e20"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
