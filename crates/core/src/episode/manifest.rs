//! Manifests, files that list episodes: [`write_manifest`] writes one line of JSON per episode with its rows and its wrong
//! labels, and [`Manifest`] reads them back as a source of episodes.
//!
//! A manifest makes an experiment independent of this crate's sampler: other programs can run the same episodes, and this
//! one can run theirs. The first line describes the data, and the SHA-256 of the file identifies it in results. Every
//! line is checked against the data before it is used.

use crate::progress::Progress;
use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ClassDraw, DrawnEpisode, Episode, EpisodeSpec, Episodes, Item};
use crate::atomic::write_atomically;
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::noise::{Noise, NoiseKind};
use crate::rng::IndexSampler;

const FORMAT: &str = "trueshot-manifest/1";

/// The first line of a manifest.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    spec: EpisodeSpec,
    noises: Vec<Noise>,
    /// The fingerprint of the data.
    embeddings: String,
    /// The fingerprint of the outlier pool.
    outliers: Option<String>,
}

/// One episode of a manifest.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    episode: u64,
    /// Indices of the classes in the embeddings.
    classes: Vec<u32>,
    /// For every class the rows of its support items, before noise.
    support: Vec<Vec<u32>>,
    /// For every class the rows of its queries.
    queries: Vec<Vec<u32>>,
    /// For every noise setting the replaced support items: class of the episode, index in `support`, new row, and the true
    /// class of that row (a class of the episode, or -1 for an outlier).
    replaced: Vec<Vec<(u32, u32, u32, i64)>>,
}

/// Writes a manifest of the first `count` episodes and returns its SHA-256 in hexadecimal. `progress` is called before
/// every episode; if it asks to stop, no file is written and an error is returned.
pub fn write_manifest(
    path: &Path,
    episodes: &dyn Episodes,
    count: u64,
    embeddings: &Embeddings,
    outliers: Option<&Embeddings>,
    progress: &dyn Progress,
) -> Result<String> {
    let header = Header {
        format: FORMAT.into(),
        spec: *episodes.spec(),
        noises: episodes.noises().to_vec(),
        embeddings: embeddings.fingerprint().to_string(),
        outliers: outliers.map(|pool| pool.fingerprint().to_string()),
    };
    let mut hash = Sha256::new();
    let mut index_sampler = IndexSampler::default();
    write_atomically(path, |file| {
        let mut write_line = |line: String| {
            hash.update(line.as_bytes());
            file.write_all(line.as_bytes())
        };
        write_line(serde_json::to_string(&header)? + "\n")?;
        for index in 0..count {
            if progress.update(index, count).is_break() {
                return Err(std::io::Error::other("stopped before all episodes were written"));
            }
            let drawn = episodes.draw(index, &mut index_sampler).map_err(std::io::Error::other)?;
            write_line(serde_json::to_string(&Line::from(&drawn))? + "\n")?;
        }
        Ok(())
    })?;
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl From<&DrawnEpisode> for Line {
    fn from(drawn: &DrawnEpisode) -> Self {
        let classes = &drawn.episode.classes;
        let replaced = |support: &Vec<Item>| {
            let mut counts = vec![0; classes.len()];
            let with_index = support.iter().map(|item| {
                counts[item.given as usize] += 1;
                (item, counts[item.given as usize] - 1)
            });
            let wrong = with_index.filter(|(item, _)| item.is_wrong());
            wrong.map(|(i, index)| (i.given, index, i.row, i.truth.map_or(-1, i64::from))).collect()
        };
        Line {
            episode: drawn.episode.index,
            classes: classes.iter().map(|c| c.class).collect(),
            support: classes.iter().map(|c| c.support.clone()).collect(),
            queries: classes.iter().map(|c| c.queries.clone()).collect(),
            replaced: drawn.supports.iter().map(replaced).collect(),
        }
    }
}

/// Episodes that were read from a manifest file, a source of episodes like [`Sampler`](super::Sampler).
///
/// ```
/// use trueshot::episode::{EpisodeSpec, Episodes, Manifest, Sampler, write_manifest};
///
/// let labels = (0..150).map(|row| format!("class {}", row % 5)).collect();
/// let data = trueshot::Embeddings::from_rows((0..150).map(|row| row as f32).collect(), 1, labels)?;
/// let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
/// let sampler = Sampler::new(&data, None, EpisodeSpec::default(), vec![])?;
/// let hash = write_manifest(&path, &sampler, 10, &data, None, &())?;
/// let manifest = Manifest::open(&path, &data, None)?;
/// assert_eq!((manifest.limit(), manifest.manifest_hash()), (Some(10), Some(hash.as_str())));
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct Manifest {
    spec: EpisodeSpec,
    noises: Vec<Noise>,
    episodes: Vec<DrawnEpisode>,
    hash: String,
}

impl Manifest {
    /// Reads a manifest and checks every line against the data.
    ///
    /// # Errors
    /// [`Error::OtherData`] if it was written for other data, [`Error::BadManifest`] with the number of the line if a line
    /// is not valid.
    pub fn open(path: &Path, embeddings: &Embeddings, outliers: Option<&Embeddings>) -> Result<Self> {
        let read_error = |source| Error::Read { path: path.into(), source };
        let mut file = BufReader::new(std::fs::File::open(path).map_err(read_error)?);
        let mut hash = Sha256::new();
        let mut text = String::new();
        let mut next_line = |text: &mut String| -> Result<bool> {
            text.clear();
            let more = file.read_line(text).map_err(read_error)? > 0;
            hash.update(text.as_bytes());
            Ok(more)
        };
        let bad = |line, problem| Error::BadManifest { path: path.into(), line, problem };
        next_line(&mut text)?;
        let header: Header = serde_json::from_str(&text).map_err(|error| bad(1, error.to_string()))?;
        header.check(embeddings, outliers, |problem| bad(1, problem))?;
        let mut episodes = Vec::new();
        while next_line(&mut text)? {
            let number = episodes.len() + 2;
            let line: Line = serde_json::from_str(&text).map_err(|error| bad(number, error.to_string()))?;
            let checker = LineChecker { header: &header, embeddings, outliers };
            let drawn =
                checker.episode(line, episodes.len() as u64).map_err(|problem| bad(number, problem))?;
            episodes.push(drawn);
        }
        let hash = hex(&hash.finalize());
        Ok(Manifest { spec: header.spec, noises: header.noises, episodes, hash })
    }
}

impl Episodes for Manifest {
    fn spec(&self) -> &EpisodeSpec {
        &self.spec
    }

    fn noises(&self) -> &[Noise] {
        &self.noises
    }

    fn draw(&self, index: u64, _index_sampler: &mut IndexSampler) -> Result<DrawnEpisode> {
        Ok(self.episodes[index as usize].clone())
    }

    fn limit(&self) -> Option<u64> {
        Some(self.episodes.len() as u64)
    }

    fn manifest_hash(&self) -> Option<&str> {
        Some(&self.hash)
    }
}

impl Header {
    fn check(
        &self,
        embeddings: &Embeddings,
        outliers: Option<&Embeddings>,
        bad: impl Fn(String) -> Error,
    ) -> Result<()> {
        if self.format != FORMAT {
            return Err(bad(format!("format is '{}'; this version reads {FORMAT}", self.format)));
        }
        self.spec.check()?;
        for noise in &self.noises {
            Noise::new(noise.kind, noise.level)?;
        }
        let same = |what, expected: &str, data: &Embeddings| match data.fingerprint().to_string() {
            found if found == expected => Ok(()),
            found => Err(Error::OtherData { what, expected: expected.into(), found }),
        };
        same("embeddings", &self.embeddings, embeddings)?;
        let used = self.noises.iter().any(|noise| noise.kind == NoiseKind::Outlier && noise.level > 0.0);
        if let Some(pool) = outliers.filter(|pool| used && pool.dim() != embeddings.dim()) {
            return Err(Error::OutlierDimension { pool: pool.dim(), data: embeddings.dim() });
        }
        if used {
            let expected = self.outliers.as_ref().unwrap_or(&self.embeddings);
            same("an outlier pool", expected, outliers.unwrap_or(embeddings))?;
        }
        Ok(())
    }
}

/// Checks the lines of a manifest against its header and the data.
struct LineChecker<'a> {
    header: &'a Header,
    embeddings: &'a Embeddings,
    outliers: Option<&'a Embeddings>,
}

impl LineChecker<'_> {
    /// The episode of a line, if all its rows exist and have the stated classes; otherwise what is wrong with it.
    fn episode(&self, line: Line, index: u64) -> Result<DrawnEpisode, String> {
        let EpisodeSpec { ways, shots, queries, .. } = self.header.spec;
        let mut seen = HashSet::new();
        require(line.episode == index, || format!("episode {} where {index} was expected", line.episode))?;
        require(line.classes.iter().collect::<HashSet<_>>().len() == ways, || {
            format!("{ways} different classes expected, found {:?}", line.classes)
        })?;
        require(line.support.len() == ways && line.queries.len() == ways, || {
            format!("support and queries must have {ways} lists each")
        })?;
        require(line.replaced.len() == self.header.noises.len(), || {
            format!("{} noise settings expected, found {}", self.header.noises.len(), line.replaced.len())
        })?;
        for (class, (support, query)) in line.classes.iter().zip(line.support.iter().zip(&line.queries)) {
            require((shots.min..=shots.max).contains(&support.len()), || {
                format!("{} support rows where {shots} were expected", support.len())
            })?;
            require(query.len() == queries, || format!("{} queries, expected {queries}", query.len()))?;
            for &row in support.iter().chain(query) {
                let label = self.embeddings.labels().get(row as usize);
                require(label == Some(class), || format!("row {row} is not of class {class}"))?;
                require(seen.insert(row), || format!("row {row} is used twice"))?;
            }
        }
        let settings = line.replaced.iter().zip(&self.header.noises);
        let supports = settings.map(|(replaced, noise)| self.support(&line, replaced, noise.kind, &seen));
        let supports = supports.collect::<Result<_, String>>()?;
        let draws = line.classes.iter().zip(line.support.into_iter().zip(line.queries));
        let draws = draws.map(|(&class, (support, queries))| ClassDraw {
            class,
            support,
            queries,
            pool: Vec::new(),
            noise_order: Vec::new(),
        });
        Ok(DrawnEpisode { episode: Episode { index, classes: draws.collect() }, supports })
    }

    /// The support set of a line under one noise setting, with the replacements applied. `drawn` are the support and query
    /// rows of the episode, which must not be used as replacements.
    fn support(
        &self,
        line: &Line,
        replaced: &[(u32, u32, u32, i64)],
        kind: NoiseKind,
        drawn: &HashSet<u32>,
    ) -> Result<Vec<Item>, String> {
        let clean = |(given, rows): (u32, &Vec<u32>)| -> Vec<Item> {
            rows.iter().map(|&row| Item { row, given, truth: Some(given) }).collect()
        };
        let mut support: Vec<Vec<Item>> = (0..).zip(&line.support).map(clean).collect();
        let mut used = HashSet::new();
        for &(given, index, row, truth) in replaced {
            let item = support.get_mut(given as usize).and_then(|class| class.get_mut(index as usize));
            let item = item.ok_or_else(|| format!("class {given} has no support item {index}"))?;
            require(used.insert(row), || format!("row {row} replaces two items"))?;
            let truth = self.truth(line, row, truth, kind)?;
            require(truth.is_none() || !drawn.contains(&row), || {
                format!("row {row} is a replacement and also support or query")
            })?;
            *item = Item { row, given, truth };
        }
        Ok(support.concat())
    }

    /// The true class of a replacement, if it agrees with the data.
    fn truth(&self, line: &Line, row: u32, truth: i64, kind: NoiseKind) -> Result<Option<u32>, String> {
        if kind == NoiseKind::Outlier {
            let label = self.outliers.unwrap_or(self.embeddings).labels().get(row as usize);
            require(label.is_some() && truth == -1, || format!("row {row} is not in the outlier pool"))?;
            let is_same_source = self.outliers.is_none_or(|pool| std::ptr::eq(pool, self.embeddings));
            let is_in_episode = is_same_source && label.is_some_and(|label| line.classes.contains(label));
            require(!is_in_episode, || format!("row {row} is an outlier of a class of its own episode"))?;
            return Ok(None);
        }
        let class = usize::try_from(truth).ok().and_then(|truth| line.classes.get(truth));
        let label = self.embeddings.labels().get(row as usize);
        require(class.is_some() && class == label, || format!("row {row} is not of class {truth}"))?;
        Ok(Some(truth as u32))
    }
}

fn require(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::{Sampler, Shots};

    fn embeddings(seed: f32) -> Embeddings {
        let labels = (0..240).map(|i| format!("{}", i / 40)).collect();
        Embeddings::from_rows((0..240).map(|i| i as f32 + seed).collect(), 1, labels).unwrap()
    }

    fn noises() -> Vec<Noise> {
        let all = [(NoiseKind::Symmetric, 0.4), (NoiseKind::Paired, 0.2), (NoiseKind::Outlier, 0.4)];
        all.into_iter().map(|(kind, level)| Noise::new(kind, level).unwrap()).collect()
    }

    fn written(folder: &Path) -> (Embeddings, Embeddings, std::path::PathBuf, String) {
        let (data, pool, path) = (embeddings(0.0), embeddings(0.5), folder.join("episodes.jsonl"));
        let spec = EpisodeSpec { ways: 4, shots: Shots { min: 4, max: 7 }, queries: 3, seed: 5 };
        let hash = {
            let sampler = Sampler::new(&data, Some(&pool), spec, noises()).unwrap();
            write_manifest(&path, &sampler, 20, &data, Some(&pool), &()).unwrap()
        };
        (data, pool, path, hash)
    }

    #[test]
    fn a_manifest_replays_the_episodes_it_was_written_from() {
        let folder = tempfile::tempdir().unwrap();
        let (data, pool, path, hash) = written(folder.path());
        let manifest = Manifest::open(&path, &data, Some(&pool)).unwrap();
        assert_eq!(manifest.manifest_hash(), Some(hash.as_str()));
        assert_eq!(manifest.limit(), Some(20));
        let sampler = Sampler::new(&data, Some(&pool), *manifest.spec(), noises()).unwrap();
        for index in 0..20 {
            let (sampled, replayed) = (
                sampler.draw(index, &mut IndexSampler::default()).unwrap(),
                manifest.draw(index, &mut IndexSampler::default()).unwrap(),
            );
            assert_eq!(sampled.supports, replayed.supports);
            for (a, b) in sampled.episode.classes.iter().zip(&replayed.episode.classes) {
                assert_eq!((a.class, &a.support, &a.queries), (b.class, &b.support, &b.queries));
            }
        }
    }

    #[test]
    fn a_manifest_from_other_data_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (data, pool, path, _) = written(folder.path());
        let refused = |data: &Embeddings, pool: Option<&Embeddings>| Manifest::open(&path, data, pool).err();
        assert!(matches!(
            refused(&embeddings(9.0), Some(&pool)),
            Some(Error::OtherData { what: "embeddings", .. })
        ));
        assert!(matches!(
            refused(&data, Some(&data)),
            Some(Error::OtherData { what: "an outlier pool", .. })
        ));
        assert!(matches!(refused(&data, None), Some(Error::OtherData { what: "an outlier pool", .. })));
    }

    #[test]
    fn outliers_of_other_classes_are_replayed_and_never_of_a_class_of_the_episode() {
        let folder = tempfile::tempdir().unwrap();
        let (data, path) = (embeddings(0.0), folder.path().join("same-source.jsonl"));
        let spec = EpisodeSpec { ways: 5, shots: Shots::exactly(5), queries: 5, seed: 3 };
        let noises = vec![Noise::new(NoiseKind::Outlier, 0.4).unwrap()];
        let sampler = Sampler::new(&data, None, spec, noises).unwrap();
        write_manifest(&path, &sampler, 3, &data, None, &()).unwrap();
        let manifest = Manifest::open(&path, &data, None).unwrap();
        assert!(Manifest::open(&path, &data, Some(&data)).is_ok());
        let scratch = &mut IndexSampler::default();
        assert_eq!(manifest.draw(1, scratch).unwrap().supports, sampler.draw(1, scratch).unwrap().supports);
        let text = std::fs::read_to_string(&path).unwrap();
        let (header, first) = text.split_once('\n').unwrap();
        let mut first: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
        first["replaced"][0][0][2] = first["support"][1][0].clone();
        std::fs::write(&path, format!("{header}\n{first}\n")).unwrap();
        let message = Manifest::open(&path, &data, None).err().unwrap().to_string();
        assert!(message.contains("an outlier of a class of its own episode"), "{message}");
    }

    #[test]
    fn an_invalid_line_is_reported_with_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let (data, pool, path, _) = written(folder.path());
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let mut third: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
        type Tamper = fn(&mut serde_json::Value);
        let cases: [(&str, Tamper); 6] = [
            ("used twice", |v| v["queries"][0][0] = v["queries"][0][1].clone()),
            ("is not of class", |v| v["support"][0][0] = 100_000.into()),
            ("has no support item", |v| v["replaced"][0][0][1] = 50.into()),
            ("is not in the outlier pool", |v| v["replaced"][2][0][2] = 4_000_000.into()),
            ("different classes", |v| v["classes"][0] = v["classes"][1].clone()),
            ("where 1 was expected", |v| v["episode"] = 7.into()),
        ];
        let whole = third.clone();
        for (expected, tamper) in cases {
            third = whole.clone();
            tamper(&mut third);
            let tampered = [lines[0], lines[1], &third.to_string()].join("\n");
            std::fs::write(&path, tampered).unwrap();
            let message = Manifest::open(&path, &data, Some(&pool)).err().unwrap().to_string();
            assert!(message.contains("line 3") && message.contains(expected), "{expected}: {message}");
        }
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert!(Manifest::open(&path, &data, Some(&pool)).err().unwrap().to_string().contains("line 21"));
    }
}
