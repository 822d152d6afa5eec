//! Manifests, files that list episodes (few-shot classification problems): [`write_manifest`] writes one line of JSON
//! per episode with its rows and its wrong labels, and [`Manifest`] reads them back as a source of episodes.
//!
//! A noise setting is a type and amount of wrong labels; an episode has one support set (its labelled items) per
//! setting. A line holds the clean support set once, and for every setting only the changes to it ([`Line`]).
//!
//! A manifest makes an experiment independent of this crate's sampler: other programs can run the same episodes, and
//! this one can run theirs. The first line ([`Header`]) describes the data, and the SHA-256 of the file identifies it
//! in results. Every line is checked against the data before it is used, because manifests may come from other
//! programs.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ClassDraw, DrawnEpisode, Episode, EpisodeSpec, Episodes, Item, corrupt};
use crate::atomic::write_atomically;
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::noise::{Noise, NoiseKind};
use crate::progress::Progress;
use crate::rng::IndexSampler;

/// The name and version of the file format, in the first line.
const FORMAT: &str = "trueshot-manifest/1";

/// The first line of a manifest, in JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    spec: EpisodeSpec,
    noises: Vec<Noise>,
    /// The fingerprint of the data.
    embeddings: String,
    /// The fingerprint of the outlier pool; `None` if outliers are rows of the data itself.
    outliers: Option<String>,
}

/// One episode of a manifest, a line of JSON. Rows are row numbers of the embeddings or, for outliers, of the outlier
/// pool.
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
    /// For every noise setting the replaced support items: class of the episode, index in `support`, new row, and the
    /// true class of that row (a class of the episode, or -1 for an outlier).
    replaced: Vec<Vec<(u32, u32, u32, i64)>>,
    /// For every noise setting the support items with another given label: class of the episode, index in `support`,
    /// and the given class. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    relabelled: Vec<Vec<(u32, u32, u32)>>,
}

/// Writes a manifest of the first `count` episodes and returns its SHA-256 in hexadecimal. `embeddings` and `outliers`
/// must be the data that `episodes` are drawn from. `progress` is called before every episode; if it asks to stop, no
/// file is written and an error is returned.
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
        let changes: Vec<Changes> =
            drawn.supports.iter().map(|support| Changes::of(&drawn.episode, support)).collect();
        let is_relabelled = changes.iter().any(|changes| !changes.relabelled.is_empty());
        let (replaced, relabelled): (Vec<_>, Vec<_>) =
            changes.into_iter().map(|changes| (changes.replaced, changes.relabelled)).unzip();
        Line {
            episode: drawn.episode.index,
            classes: classes.iter().map(|c| c.class).collect(),
            support: classes.iter().map(|c| c.support.clone()).collect(),
            queries: classes.iter().map(|c| c.queries.clone()).collect(),
            replaced,
            relabelled: if is_relabelled { relabelled } else { Vec::new() },
        }
    }
}

/// The differences between a support set under one noise setting and the clean one of its episode, as in [`Line`].
struct Changes {
    replaced: Vec<(u32, u32, u32, i64)>,
    relabelled: Vec<(u32, u32, u32)>,
}

impl Changes {
    /// The changes that turn the clean support set of an episode into `support`.
    fn of(episode: &Episode, support: &[Item]) -> Self {
        // Built-in noise keeps the class sizes and the positions of clean items, and a replacement has the position of
        // the item that it replaces. Custom noise gives items other labels, so its support set has another order.
        let keeps_positions = |class: usize, items: &[Item]| {
            let clean = &episode.classes[class].support;
            items.len() == clean.len()
                && items.iter().zip(clean).all(|(item, &row)| item.is_wrong() || item.row == row)
        };
        let by_class: Vec<Vec<Item>> = (0..episode.classes.len() as u32)
            .map(|class| support.iter().copied().filter(|item| item.given == class).collect())
            .collect();
        // A new item is one that the clean support set does not contain. An outlier is always new: its row may be a row
        // of another file.
        let drawn: HashSet<u32> =
            episode.classes.iter().flat_map(|draw| draw.support.iter().copied()).collect();
        let is_new = |item: &Item| item.truth.is_none() || !drawn.contains(&item.row);
        let is_in_place = by_class.iter().enumerate().all(|(class, items)| {
            keeps_positions(class, items) && items.iter().all(|item| !item.is_wrong() || is_new(item))
        });
        match is_in_place {
            true => Changes { replaced: replacements(&by_class), relabelled: Vec::new() },
            false => Self::of_relabelled(episode, support, is_new),
        }
    }

    /// The changes of a noise type that gives items other labels. Nothing says which new item replaced which clean one,
    /// so the new items are assigned to the missing clean ones in order.
    fn of_relabelled(episode: &Episode, support: &[Item], is_new: impl Fn(&Item) -> bool) -> Self {
        let mut new = support.iter().filter(|item| is_new(item));
        let mut changes = Changes { replaced: Vec::new(), relabelled: Vec::new() };
        for (class, draw) in (0..).zip(&episode.classes) {
            for (index, row) in (0..).zip(&draw.support) {
                // The item with this row, unless another one replaced it.
                let original = support.iter().find(|item| item.row == *row && !is_new(item));
                let Some(item) = original.or_else(|| new.next()) else { continue };
                if original.is_none() {
                    changes.replaced.push((class, index, item.row, item.truth.map_or(-1, i64::from)));
                }
                if item.given != class {
                    changes.relabelled.push((class, index, item.given));
                }
            }
        }
        changes
    }
}

/// The wrong items of every class, as entries of [`Line::replaced`]; `by_class` are the items under each given label.
fn replacements(by_class: &[Vec<Item>]) -> Vec<(u32, u32, u32, i64)> {
    let wrong_of = |items: &Vec<Item>| {
        let wrong = (0..).zip(items.clone()).filter(|(_, item)| item.is_wrong());
        wrong.map(|(index, i)| (i.given, index, i.row, i.truth.map_or(-1, i64::from))).collect::<Vec<_>>()
    };
    by_class.iter().flat_map(wrong_of).collect()
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
    /// [`Error::ManifestOfOtherData`] if it was written for other data, [`Error::BadManifest`] with the number of the
    /// line if a line is not valid.
    pub fn open(path: &Path, embeddings: &Embeddings, outliers: Option<&Embeddings>) -> Result<Self> {
        let read_error = |source| Error::Read { path: path.into(), source };
        let mut file = BufReader::new(std::fs::File::open(path).map_err(read_error)?);
        let mut hash = Sha256::new();
        let mut text = String::new();
        // Reads the next line into `text` and adds it to the hash of the file; false at the end of the file.
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
            // Lines are counted from 1, and the first is the header.
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
    /// Checks the format, the ranges of the episode shape and the noise levels, and that the data has the fingerprints
    /// of the header. `bad` makes an error from a problem.
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
        let check_data = |what, expected: &str, data: &Embeddings| match data.fingerprint().to_string() {
            found if found == expected => Ok(()),
            found => Err(Error::ManifestOfOtherData { what, expected: expected.into(), found }),
        };
        check_data("embeddings", &self.embeddings, embeddings)?;
        // The outlier pool matters only if a noise setting can draw from it.
        let may_have_outliers = |noise: &Noise| match noise.kind {
            NoiseKind::Outlier => noise.level > 0.0,
            NoiseKind::Named(_) => true,
            _ => false,
        };
        let uses_outliers = self.noises.iter().any(may_have_outliers);
        if let Some(pool) = outliers.filter(|pool| uses_outliers && pool.dim() != embeddings.dim()) {
            return Err(Error::OutlierDimension { pool: pool.dim(), data: embeddings.dim() });
        }
        if uses_outliers {
            let expected = self.outliers.as_ref().unwrap_or(&self.embeddings);
            check_data("an outlier pool", expected, outliers.unwrap_or(embeddings))?;
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
        // The support and query rows of the episode so far.
        let mut seen = HashSet::new();
        require(line.episode == index, || format!("episode {} where {index} was expected", line.episode))?;
        let different = line.classes.iter().collect::<HashSet<_>>().len();
        require(line.classes.len() == ways && different == ways, || {
            format!("{ways} different classes expected, found {:?}", line.classes)
        })?;
        require(line.support.len() == ways && line.queries.len() == ways, || {
            format!("support and queries must have {ways} lists each")
        })?;
        let settings = self.header.noises.len();
        require(line.replaced.len() == settings, || {
            format!("{settings} noise settings expected, found {}", line.replaced.len())
        })?;
        let relabelled = line.relabelled.len();
        require(relabelled == settings || relabelled == 0, || {
            format!("{settings} lists of relabelled items expected, found {relabelled}")
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
        let supports = (0..settings).map(|setting| self.support(&line, setting, &seen));
        let supports = supports.collect::<Result<_, String>>()?;
        // The pool and the noise order are needed only to draw noise, which a manifest has already done.
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

    /// The support set of a line under one noise setting, with the replacements and other labels applied. `drawn` are
    /// the support and query rows of the episode, which must not be used as replacements. `Err` says what is wrong.
    fn support(&self, line: &Line, setting: usize, drawn: &HashSet<u32>) -> Result<Vec<Item>, String> {
        let kind = self.header.noises[setting].kind;
        let clean = |(given, rows): (u32, &Vec<u32>)| -> Vec<Item> {
            rows.iter().map(|&row| Item { row, given, truth: Some(given) }).collect()
        };
        let mut support: Vec<Vec<Item>> = (0..).zip(&line.support).map(clean).collect();
        let mut used = HashSet::new();
        for &(given, index, row, truth) in &line.replaced[setting] {
            let item = item_at(&mut support, given, index)?;
            require(used.insert(row), || format!("row {row} replaces two items"))?;
            let truth = self.truth(line, row, truth, kind)?;
            require(truth.is_none() || !drawn.contains(&row), || {
                format!("row {row} is a replacement and also support or query")
            })?;
            *item = Item { row, given, truth };
        }
        let Some(relabelled) = line.relabelled.get(setting).filter(|list| !list.is_empty()) else {
            return Ok(support.concat());
        };
        let ways = support.len();
        for &(class, index, given) in relabelled {
            require((given as usize) < ways, || format!("{given} is not a class of the episode"))?;
            item_at(&mut support, class, index)?.given = given;
        }
        let mut items = support.concat();
        let is_missing = |&class: &usize| items.iter().all(|item| item.given as usize != class);
        let missing = (0..ways).find(is_missing);
        require(missing.is_none(), || {
            format!("class {} has no item under noise setting {setting}", missing.unwrap_or_default())
        })?;
        corrupt::group_by_given(&mut items);
        Ok(items)
    }

    /// The true class of a replacement, if it agrees with the data; `None` for an outlier. `truth` is the class that
    /// the line states, with -1 for an outlier.
    fn truth(&self, line: &Line, row: u32, truth: i64, kind: NoiseKind) -> Result<Option<u32>, String> {
        let is_custom = matches!(kind, NoiseKind::Named(_));
        if kind == NoiseKind::Outlier || (is_custom && truth == -1) {
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

/// A support item by its class and its index in the class.
fn item_at(support: &mut [Vec<Item>], class: u32, index: u32) -> Result<&mut Item, String> {
    let item = support.get_mut(class as usize).and_then(|items| items.get_mut(index as usize));
    item.ok_or_else(|| format!("class {class} has no support item {index}"))
}

fn require(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::{Sampler, Shots};

    /// Six classes of 40 rows with one value each; `offset` is added to all values.
    fn embeddings(offset: f32) -> Embeddings {
        let labels = (0..240).map(|i| format!("{}", i / 40)).collect();
        Embeddings::from_rows((0..240).map(|i| i as f32 + offset).collect(), 1, labels).unwrap()
    }

    fn noises() -> Vec<Noise> {
        let all = [(NoiseKind::Symmetric, 0.4), (NoiseKind::Paired, 0.2), (NoiseKind::Outlier, 0.4)];
        all.into_iter().map(|(kind, level)| Noise::new(kind, level).unwrap()).collect()
    }

    /// A manifest of 20 episodes: the data, the outlier pool, the path and the hash.
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
            Some(Error::ManifestOfOtherData { what: "embeddings", .. })
        ));
        assert!(matches!(
            refused(&data, Some(&data)),
            Some(Error::ManifestOfOtherData { what: "an outlier pool", .. })
        ));
        assert!(matches!(
            refused(&data, None),
            Some(Error::ManifestOfOtherData { what: "an outlier pool", .. })
        ));
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

    /// Gives each item the label of the next class with probability 1/6, except the first item of each class, and
    /// replaces the last item by a random outlier.
    struct Mixed;

    impl crate::noise::LabelNoise for Mixed {
        fn name(&self) -> &str {
            "mixed"
        }

        fn relabel(
            &self,
            support: &crate::noise::CleanSupport<'_>,
            rng: &mut crate::rng::Rng,
        ) -> Result<crate::noise::NoisyLabels> {
            let mut given = support.labels.clone();
            let others = (0..given.len()).filter(|&item| item % 6 == rng.below(6));
            others.for_each(|item| given[item] = (given[item] + 1) % 4);
            for class in 0..4 {
                let first = support.labels.iter().position(|&label| label == class).unwrap();
                given[first] = class;
            }
            let last = given.len() as u32 - 1;
            Ok(crate::noise::NoisyLabels { given, outliers: vec![(last, rng.below(240) as u32)] })
        }
    }

    #[test]
    fn custom_noise_is_replayed_under_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (data, pool, path) = (embeddings(0.0), embeddings(0.5), folder.path().join("own.jsonl"));
        let spec = EpisodeSpec { ways: 4, shots: Shots { min: 4, max: 7 }, queries: 3, seed: 5 };
        let sampler = Sampler::new(&data, Some(&pool), spec, noises()).unwrap();
        let sampler = sampler.with_noise(Box::new(Mixed)).unwrap();
        write_manifest(&path, &sampler, 30, &data, Some(&pool), &()).unwrap();
        let manifest = Manifest::open(&path, &data, Some(&pool)).unwrap();
        assert_eq!(manifest.noises()[3].kind.name(), "mixed");
        for index in 0..30 {
            let scratch = &mut IndexSampler::default();
            let (sampled, replayed) =
                (sampler.draw(index, scratch).unwrap(), manifest.draw(index, scratch).unwrap());
            assert!(sampled.supports[3].iter().any(|item| item.is_wrong()));
            assert_eq!(sampled.supports, replayed.supports);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let (header, first) = text.split_once('\n').unwrap();
        let first: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
        let refused = |relabelled: serde_json::Value| {
            let mut line = first.clone();
            line["relabelled"] = relabelled;
            std::fs::write(&path, format!("{header}\n{line}\n")).unwrap();
            Manifest::open(&path, &data, Some(&pool)).err().unwrap().to_string()
        };
        let sizes: Vec<usize> =
            first["support"].as_array().unwrap().iter().map(|rows| rows.as_array().unwrap().len()).collect();
        let all_of_class_0: Vec<[usize; 3]> = (0..sizes[0]).map(|index| [0, index, 1]).collect();
        let message = refused(serde_json::json!([[], [], [], all_of_class_0]));
        assert!(message.contains("line 2") && message.contains("class 0 has no item under noise setting 3"));
        assert!(
            refused(serde_json::json!([[], [], [], [[0, 0, 9]]])).contains("9 is not a class of the episode")
        );
        assert!(refused(serde_json::json!([[], [], [], [[0, 90, 1]]])).contains("has no support item 90"));
        assert!(refused(serde_json::json!([[]])).contains("4 lists of relabelled items expected, found 1"));
    }

    #[test]
    fn an_invalid_line_is_reported_with_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let (data, pool, path, _) = written(folder.path());
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let mut third: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
        type Tamper = fn(&mut serde_json::Value);
        let cases: [(&str, Tamper); 7] = [
            ("used twice", |v| v["queries"][0][0] = v["queries"][0][1].clone()),
            ("is not of class", |v| v["support"][0][0] = 100_000.into()),
            ("has no support item", |v| v["replaced"][0][0][1] = 50.into()),
            ("is not in the outlier pool", |v| v["replaced"][2][0][2] = 4_000_000.into()),
            ("different classes", |v| v["classes"][0] = v["classes"][1].clone()),
            ("different classes", |v| {
                let again = v["classes"][0].clone();
                v["classes"].as_array_mut().unwrap().push(again);
            }),
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
        // The last line, of episode 20 after the header, is truncated.
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert!(Manifest::open(&path, &data, Some(&pool)).err().unwrap().to_string().contains("line 21"));
    }
}
