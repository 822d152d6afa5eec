//! Reads `symmetric=0,20,40`: a noise type and its levels in percent.

use trueshot::noise::{Noise, NoiseKind, NoiseLevels};

/// One `--noise` argument.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseArgument(pub Vec<Noise>);

/// What people ask for first: the levels of the paper.
impl Default for NoiseArgument {
    fn default() -> Self {
        let level = |level| Noise { kind: NoiseKind::Symmetric, level };
        NoiseArgument([0.0, 0.2, 0.4, 0.6].into_iter().map(level).collect())
    }
}

impl std::str::FromStr for NoiseArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(|NoiseLevels(levels)| NoiseArgument(levels))
    }
}

/// All settings once, in the order given; without noise all types are the same, so 0 % is kept once.
pub fn settings(arguments: &[NoiseArgument]) -> Vec<Noise> {
    let mut settings: Vec<Noise> = Vec::new();
    for &noise in arguments.iter().flat_map(|argument| &argument.0) {
        let same = |known: &Noise| *known == noise || (known.level == 0.0 && noise.level == 0.0);
        if !settings.iter().any(same) {
            settings.push(noise);
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_percent_and_clean_is_kept_once() {
        let arguments: Vec<NoiseArgument> = ["symmetric=0,20", "paired=0,40", "outlier=33.3"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let names: Vec<String> = settings(&arguments).iter().map(Noise::to_string).collect();
        assert_eq!(names, ["symmetric 0 %", "symmetric 20 %", "paired 40 %", "outlier 33.3 %"]);
    }

    #[test]
    fn what_cannot_be_read_is_explained() {
        let problem = |text: &str| text.parse::<NoiseArgument>().unwrap_err();
        assert!(problem("symmetric").contains("TYPE=LEVEL"));
        assert!(problem("gaussian=10").contains("known: symmetric, paired, outlier"));
        assert!(problem("paired=much").contains("not a level in percent"));
        assert!(problem("paired=100").contains("below 100 %"));
    }
}
