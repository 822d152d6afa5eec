//! The three kinds of label noise and when each is possible (SPEC: symmetric, paired, outlier).

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

impl std::fmt::Display for NoiseKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NoiseKind::Symmetric => "symmetric",
            NoiseKind::Paired => "paired",
            NoiseKind::Outlier => "outlier",
        })
    }
}
