//! Label noise: the noise types ([`NoiseKind`]), a type with a level ([`Noise`]) and the text form `symmetric=0,20,40`
//! ([`NoiseLevels`]). Which items an episode replaces is decided in `episode::corrupt`.
//!
//! An episode is a small classification problem: a number of classes ("ways"), each with a few labelled items
//! ("shots"), which together are the support set. Noise replaces some of the items under a label by items of other
//! classes.
//!
//! The level is the fraction of the shots of a class that are replaced. Symmetric noise takes the replacements from all
//! other classes of the episode, paired noise from one other class, similar noise from the items of other classes that
//! are nearest to the class, outlier noise from classes outside the episode. For every type, the right class must stay
//! the most frequent one among the items with its label, because otherwise the label could not be recovered from the
//! support set; [`NoiseKind::is_possible`] checks that.
//!
//! Other types implement [`LabelNoise`]: they give the items of a support set other labels, and results report them
//! under their own name with the measured share of wrong labels. [`ConfusionNoise`] is one of them.

mod confusion;
mod label_noise;

pub use confusion::ConfusionNoise;
pub use label_noise::{CleanSupport, LabelNoise, NoiseName, NoisyLabels};

use crate::error::{Error, Result};

/// The noise type: where the wrong items of a class come from.
///
/// ```
/// use trueshot::noise::NoiseKind;
///
/// // In a 5-way 5-shot episode, 2 of 5 items can be replaced by items of one other class, but not 3.
/// assert!(NoiseKind::Paired.is_possible(5, 5, 2));
/// assert!(!NoiseKind::Paired.is_possible(5, 5, 3));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum NoiseKind {
    /// Wrong items come from any other class of the episode.
    Symmetric,
    /// All wrong items of a class come from one other class.
    Paired,
    /// Wrong items come from classes outside the episode.
    Outlier,
    /// Wrong items are those of other classes of the episode that are most similar to the class of their label.
    Similar,
    /// A custom noise type: a [`LabelNoise`], or the name that a manifest (a file of fixed episodes) gives its noise.
    Named(NoiseName),
}

impl NoiseKind {
    /// All built-in noise types: those of Liang et al., "Few-shot Learning with Noisy Labels" (2022), in the order of
    /// the paper, then others.
    pub const ALL: [NoiseKind; 4] =
        [NoiseKind::Symmetric, NoiseKind::Paired, NoiseKind::Outlier, NoiseKind::Similar];

    /// The built-in noise type with a name.
    ///
    /// # Errors
    /// A message with the names that there are.
    pub fn built_in(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(NoiseKind::name).join(", ");
            format!("unknown noise type '{name}'; known: {known}")
        })
    }

    /// The lower-case name used on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            NoiseKind::Symmetric => "symmetric",
            NoiseKind::Paired => "paired",
            NoiseKind::Outlier => "outlier",
            NoiseKind::Similar => "similar",
            NoiseKind::Named(name) => name.as_str(),
        }
    }

    /// Whether `noisy` of the `shots` items of every class can be wrong in an episode of `ways` classes, such that the
    /// right class stays the most frequent one under every label.
    pub fn is_possible(self, ways: usize, shots: usize, noisy: usize) -> bool {
        let clean = shots.saturating_sub(noisy);
        if noisy == 0 {
            return true;
        }
        match self {
            // Each of the other classes may contribute fewer items than remain clean, so at most `clean - 1`.
            NoiseKind::Symmetric | NoiseKind::Similar => {
                ways >= 2 && clean >= 2 && (ways - 1) * (clean - 1) >= noisy
            }
            // One other class contributes all wrong items.
            NoiseKind::Paired => ways >= 2 && noisy < clean,
            // Outliers belong to none of the classes of the episode, so they cannot outnumber the right class.
            NoiseKind::Outlier => clean >= 1,
            // The sampler checks the labels of a custom noise type in every episode.
            NoiseKind::Named(_) => true,
        }
    }
}

impl From<NoiseKind> for String {
    fn from(kind: NoiseKind) -> Self {
        kind.name().into()
    }
}

/// The built-in type with this name, or a custom type.
impl TryFrom<String> for NoiseKind {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        NoiseKind::built_in(&name).or_else(|_| NoiseName::new(&name).map(NoiseKind::Named))
    }
}

impl std::fmt::Display for NoiseKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A noise setting: a noise type and its level.
///
/// ```
/// use trueshot::noise::{Noise, NoiseKind};
///
/// let noise = Noise::new(NoiseKind::Symmetric, 0.4)?;
/// assert_eq!(noise.noisy_items(5), 2);
/// assert_eq!(noise.to_string(), "symmetric 40 %");
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Noise {
    /// Where the wrong items come from.
    #[serde(rename = "noise")]
    pub kind: NoiseKind,
    /// The fraction of the shots of a class that are wrong, in [0, 1).
    pub level: f64,
}

impl Noise {
    /// A noise setting.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the level is not in [0, 1).
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

    /// The number of wrong items among `shots`: `level * shots`, with halves rounded to even.
    pub fn noisy_items(self, shots: usize) -> usize {
        (self.level * shots as f64).round_ties_even() as usize
    }

    /// The level in percent, rounded to four decimals to remove floating-point error.
    pub fn percent(self) -> f64 {
        percent_of(self.level)
    }
}

/// A share in percent, rounded to four decimals.
fn percent_of(share: f64) -> f64 {
    (share * 1e6).round() / 1e4
}

impl std::fmt::Display for Noise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} %", self.kind, self.percent())
    }
}

/// A noise type with several levels, written `symmetric=0,20,40` (percent) on command lines and in configurations.
/// Levels below 1 % need a percent sign (`symmetric=0.5%`): `symmetric=0.4` is refused, because it is usually a mistake
/// for 40 %.
///
/// The default is `symmetric=0,20,40,60`, as in Liang et al. (2022).
///
/// ```
/// let levels: trueshot::noise::NoiseLevels = "paired=0,40".parse().unwrap();
/// assert_eq!(levels.0[1].level, 0.4);
/// assert_eq!(levels.to_string(), "paired=0,40");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseLevels(pub Vec<Noise>);

impl Default for NoiseLevels {
    fn default() -> Self {
        let level = |level| Noise { kind: NoiseKind::Symmetric, level };
        NoiseLevels([0.0, 0.2, 0.4, 0.6].into_iter().map(level).collect())
    }
}

/// The distinct noise settings of several [`NoiseLevels`], in the order given. All noise types are the same at 0 %, so
/// that level is kept once.
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
        let kind = NoiseKind::built_in(kind.trim())?;
        let level = |text: &str| {
            let text = text.trim();
            let (number, has_sign) = text.strip_suffix('%').map_or((text, false), |text| (text, true));
            let percent: f64 =
                number.trim_end().parse().map_err(|_| format!("'{text}' is not a level in percent"))?;
            // A share such as 0.4 is an easy mistake; `meant` is that share in percent.
            if percent > 0.0 && percent < 1.0 && !has_sign {
                let meant = percent_of(percent);
                return Err(format!(
                    "levels are percent: write {kind}={meant} for {meant} %, or {kind}={text}% for less than 1 %"
                ));
            }
            Noise::new(kind, percent / 100.0).map_err(|error| error.to_string())
        };
        levels.split(',').map(level).collect::<Result<_, _>>().map(NoiseLevels)
    }
}

impl std::fmt::Display for NoiseLevels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Parsing needs the percent sign below 1 %.
        let sign = |percent: f64| if percent > 0.0 && percent < 1.0 { "%" } else { "" };
        let level = |noise: &Noise| format!("{}{}", noise.percent(), sign(noise.percent()));
        let levels: Vec<String> = self.0.iter().map(level).collect();
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
    fn half_items_are_rounded_to_even() {
        let items = |level, shots| Noise::new(NoiseKind::Symmetric, level).unwrap().noisy_items(shots);
        assert_eq!([items(0.5, 5), items(0.3, 5), items(0.3333, 3), items(0.6, 5)], [2, 2, 1, 3]);
    }

    #[test]
    fn as_many_items_can_be_wrong_as_in_the_paper() {
        let possible = |kind: NoiseKind| (0..=5).filter(|&n| kind.is_possible(5, 5, n)).collect::<Vec<_>>();
        assert_eq!(possible(NoiseKind::Symmetric), [0, 1, 2, 3]);
        assert_eq!(possible(NoiseKind::Paired), [0, 1, 2]);
        assert_eq!(possible(NoiseKind::Outlier), [0, 1, 2, 3, 4]);
        assert_eq!(possible(NoiseKind::Similar), [0, 1, 2, 3]);
    }

    #[test]
    fn noise_within_the_episode_is_impossible_without_another_class() {
        for kind in [NoiseKind::Symmetric, NoiseKind::Paired, NoiseKind::Similar] {
            for ways in [0, 1] {
                assert!(kind.is_possible(ways, 5, 0) && !kind.is_possible(ways, 5, 1), "{kind}, {ways} ways");
            }
        }
    }

    #[test]
    fn levels_outside_0_to_below_1_are_refused() {
        for level in [-0.1, 1.0, 1.5, f64::NAN] {
            assert!(Noise::new(NoiseKind::Paired, level).is_err(), "{level}");
        }
    }

    #[test]
    fn levels_are_in_percent_and_the_level_0_is_kept_once() {
        let arguments: Vec<NoiseLevels> = ["symmetric=0,20", "paired=0,40", "outlier=33.3"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let names: Vec<String> = settings(&arguments).iter().map(Noise::to_string).collect();
        assert_eq!(names, ["symmetric 0 %", "symmetric 20 %", "paired 40 %", "outlier 33.3 %"]);
    }

    #[test]
    fn parse_errors_say_what_is_allowed() {
        let error = |text: &str| text.parse::<NoiseLevels>().unwrap_err();
        assert!(error("symmetric").contains("TYPE=LEVEL"));
        assert!(error("gaussian=10").contains("known: symmetric, paired, outlier, similar"));
        assert!(error("paired=much").contains("not a level in percent"));
        assert!(error("paired=100").contains("below 100 %"));
    }

    #[test]
    fn levels_below_1_percent_need_a_percent_sign() {
        let error = "paired=0.4".parse::<NoiseLevels>().unwrap_err();
        assert_eq!(error, "levels are percent: write paired=40 for 40 %, or paired=0.4% for less than 1 %");
        let levels: NoiseLevels = "symmetric=0,0.5%,2,20 %".parse().unwrap();
        assert_eq!(levels.0.iter().map(|noise| noise.level).collect::<Vec<_>>(), [0.0, 0.005, 0.02, 0.2]);
        assert_eq!(levels.to_string(), "symmetric=0,0.5%,2,20");
        assert_eq!(levels.to_string().parse(), Ok(levels));
    }
}
