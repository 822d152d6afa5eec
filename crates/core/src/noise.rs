//! The three kinds of label noise, and when each is possible.
//!
//! A level is the share of a class's shots that are replaced. Symmetric noise takes the replacements from all
//! other classes of the episode, paired noise from one other class, outlier noise from a pool of classes that
//! are in no episode. Whatever the kind, the right class must stay the most frequent one behind its own
//! label: with fewer right items than that nobody could say what the label means.

use crate::error::{Error, Result};

/// How wrong labels come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoiseKind {
    /// Wrong items come from any other class of the episode.
    Symmetric,
    /// All wrong items of a class come from one other class.
    Paired,
    /// Wrong items come from classes outside the episode.
    Outlier,
}

impl NoiseKind {
    /// All kinds.
    pub const ALL: [NoiseKind; 3] = [NoiseKind::Symmetric, NoiseKind::Paired, NoiseKind::Outlier];

    /// The name used on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            NoiseKind::Symmetric => "symmetric",
            NoiseKind::Paired => "paired",
            NoiseKind::Outlier => "outlier",
        }
    }

    /// Whether `noisy` of `shots` items can be wrong among `ways` classes of that size.
    pub fn is_possible(self, ways: usize, shots: usize, noisy: usize) -> bool {
        let right = shots.saturating_sub(noisy);
        if noisy == 0 {
            return true;
        }
        match self {
            NoiseKind::Symmetric => right >= 2 && (ways - 1) * (right - 1) >= noisy,
            NoiseKind::Paired => ways >= 2 && noisy < right,
            NoiseKind::Outlier => right >= 1,
        }
    }
}

impl std::fmt::Display for NoiseKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A kind of noise and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Noise {
    /// How wrong labels come about.
    #[serde(rename = "noise")]
    pub kind: NoiseKind,
    /// The share of a class's shots that are wrong, in [0, 1).
    pub level: f64,
}

impl Noise {
    /// Checks that the level is a share.
    pub fn new(kind: NoiseKind, level: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&level) {
            return Err(Error::OutOfRange {
                what: "the noise level",
                given: format!("{} %", level * 100.0),
                allowed: "at least 0 and below 100 %".into(),
            });
        }
        Ok(Noise { kind, level })
    }

    /// How many of `shots` items are wrong: the level's share, halves rounded to even.
    pub fn noisy_places(self, shots: usize) -> usize {
        (self.level * shots as f64).round_ties_even() as usize
    }

    /// The level in percent, without the dust that binary fractions leave.
    pub fn percent(self) -> f64 {
        (self.level * 1e6).round() / 1e4
    }
}

impl std::fmt::Display for Noise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} %", self.kind, self.percent())
    }
}

/// A noise type with some levels, written `symmetric=0,20,40` (percent) on command lines and in configurations.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseLevels(pub Vec<Noise>);

/// What people ask for first: the levels of the paper.
impl Default for NoiseLevels {
    fn default() -> Self {
        let level = |level| Noise { kind: NoiseKind::Symmetric, level };
        NoiseLevels([0.0, 0.2, 0.4, 0.6].into_iter().map(level).collect())
    }
}

/// All settings once, in the order given; without noise all types are the same, so 0 % is kept once.
pub fn settings(levels: &[NoiseLevels]) -> Vec<Noise> {
    let mut settings: Vec<Noise> = Vec::new();
    for &noise in levels.iter().flat_map(|levels| &levels.0) {
        let same = |known: &Noise| *known == noise || (known.level == 0.0 && noise.level == 0.0);
        if !settings.iter().any(same) {
            settings.push(noise);
        }
    }
    settings
}

impl std::str::FromStr for NoiseLevels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, levels) =
            text.split_once('=').ok_or("expected TYPE=LEVEL,.. such as symmetric=0,20,40")?;
        let known = NoiseKind::ALL.into_iter().find(|known| known.name() == kind.trim());
        let kind =
            known.ok_or_else(|| format!("unknown noise type '{kind}'; known: symmetric, paired, outlier"))?;
        let level = |text: &str| {
            let percent: f64 =
                text.trim().parse().map_err(|_| format!("'{text}' is not a level in percent"))?;
            Noise::new(kind, percent / 100.0).map_err(|error| error.to_string())
        };
        levels.split(',').map(level).collect::<Result<_, _>>().map(NoiseLevels)
    }
}

impl std::fmt::Display for NoiseLevels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let levels: Vec<String> = self.0.iter().map(|noise| noise.percent().to_string()).collect();
        write!(f, "{}={}", self.0.first().map_or("symmetric", |noise| noise.kind.name()), levels.join(","))
    }
}

impl serde::Serialize for NoiseLevels {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for NoiseLevels {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_places_are_rounded_to_even() {
        let places = |level, shots| Noise::new(NoiseKind::Symmetric, level).unwrap().noisy_places(shots);
        assert_eq!([places(0.5, 5), places(0.3, 5), places(0.3333, 3), places(0.6, 5)], [2, 2, 1, 3]);
    }

    #[test]
    fn the_papers_levels_are_possible_and_no_more() {
        let possible = |kind: NoiseKind| (0..=5).filter(|&n| kind.is_possible(5, 5, n)).collect::<Vec<_>>();
        assert_eq!(possible(NoiseKind::Symmetric), [0, 1, 2, 3]);
        assert_eq!(possible(NoiseKind::Paired), [0, 1, 2]);
        assert_eq!(possible(NoiseKind::Outlier), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn levels_of_one_and_beyond_are_refused() {
        for level in [-0.1, 1.0, 1.5, f64::NAN] {
            assert!(Noise::new(NoiseKind::Paired, level).is_err(), "{level}");
        }
    }

    #[test]
    fn levels_are_percent_and_clean_is_kept_once() {
        let arguments: Vec<NoiseLevels> = ["symmetric=0,20", "paired=0,40", "outlier=33.3"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let names: Vec<String> = settings(&arguments).iter().map(Noise::to_string).collect();
        assert_eq!(names, ["symmetric 0 %", "symmetric 20 %", "paired 40 %", "outlier 33.3 %"]);
    }

    #[test]
    fn what_cannot_be_read_is_explained() {
        let problem = |text: &str| text.parse::<NoiseLevels>().unwrap_err();
        assert!(problem("symmetric").contains("TYPE=LEVEL"));
        assert!(problem("gaussian=10").contains("known: symmetric, paired, outlier"));
        assert!(problem("paired=much").contains("not a level in percent"));
        assert!(problem("paired=100").contains("below 100 %"));
    }
}
