//! The episodes a head is trained on: everything about one follows from the seed and its number.

use std::ops::Range;
use std::sync::Arc;

use trueshot_nn::head;

use super::configuration::{self, CountRange};
use crate::episode::{AugmentedCopies, Episode, EpisodeData, EpisodeSpec, Item, Sampler};
use crate::error::{Error, Result};
use crate::evaluate::fetch;
use crate::noise::{Noise, NoiseKind, NoiseLevels};
use crate::rng::{IndexSampler, Purpose, Rng};

/// Draws training episodes.
pub struct TrainingEpisodes<'a> {
    banks: Vec<EpisodeData<'a>>,
    /// By bank, ways and shots.
    shapes: Vec<Vec<Vec<Shape<'a>>>>,
    blended: f64,
    mixed: f64,
    seed: u64,
}

/// Episodes of one bank with so many ways and shots.
pub(super) struct Shape<'a> {
    pub sampler: Sampler<'a>,
    /// The noise that is possible there, by entry of the configuration; entries without any are left out.
    pub noises: Vec<Vec<Noise>>,
}

/// One drawn episode.
pub struct Drawn {
    bank: usize,
    classes: usize,
    items: Vec<Item>,
    queries: Vec<(u32, u32)>,
    blends: Vec<Blend>,
}

/// A row that is not taken as it is: part of it comes from another one.
struct Blend {
    /// Its place among items and queries.
    place: usize,
    /// The other row, of the same bank or of the same outliers.
    other: u32,
    /// The share of the other one.
    share: f32,
}

/// The least share either row has in a blend.
const LEAST_SHARE: f64 = 0.35;

/// Scratch space for the rows of an episode.
#[derive(Default)]
pub struct Rows {
    /// Those that lie elsewhere in another precision.
    decoded: Vec<f32>,
    blended: Vec<f32>,
}

impl<'a> TrainingEpisodes<'a> {
    /// Checks once that every episode can be drawn.
    pub fn new(banks: Vec<EpisodeData<'a>>, episodes: &configuration::Episodes, seed: u64) -> Result<Self> {
        let ways: Vec<usize> = numbers(&episodes.ways).collect();
        let spec = |ways, shots: CountRange| EpisodeSpec {
            ways,
            shots: shots.into(),
            queries: episodes.queries,
            seed,
        };
        let several = banks.len() > 1;
        let of_bank = |bank: &EpisodeData<'a>| -> Result<Vec<Vec<Shape<'a>>>> {
            let images = AugmentedCopies::of(bank.embeddings).map(Arc::new);
            let shape = |ways, &shots: &CountRange| {
                Shape::new(*bank, images.clone(), spec(ways, shots), &episodes.noise)
            };
            ways.iter()
                .map(|&ways| those_that_fit(&episodes.shots, several, |shots| shape(ways, shots)))
                .collect()
        };
        let shapes: Vec<_> = banks.iter().map(of_bank).collect::<Result<_>>()?;
        check_used(shapes.iter().flatten().flatten(), &episodes.noise)?;
        let (blended, mixed) = (episodes.blended, episodes.mixed);
        Ok(TrainingEpisodes { banks, shapes, blended, mixed, seed })
    }

    /// One of them.
    pub fn draw(&self, index: u64, urn: &mut IndexSampler) -> Result<Drawn> {
        let mut rng = Rng::new(self.seed, Purpose::Training, index);
        let bank = rng.below(self.banks.len());
        let by_ways = &self.shapes[bank];
        let by_shots = &by_ways[rng.below(by_ways.len())];
        let shape = &by_shots[rng.below(by_shots.len())];
        let levels = &shape.noises[rng.below(shape.noises.len())];
        let noise = levels[rng.below(levels.len())];
        let episode = shape.sampler.episode(index, urn);
        let mut items = shape.sampler.corrupt(&episode, noise, urn)?;
        if self.mixed > 0.0 && rng.fraction() < self.mixed {
            shape.mix(&episode, &mut items, &mut rng, urn)?;
        }
        let queries = (0..).zip(&episode.classes);
        let queries = queries.flat_map(|(class, draw)| draw.queries.iter().map(move |&row| (row, class)));
        let queries: Vec<(u32, u32)> = queries.collect();
        let classes: Vec<usize> = episode.classes.iter().map(|draw| draw.class as usize).collect();
        let blends = self.blends(bank, &classes, &items, &queries, &mut rng);
        Ok(Drawn { bank, classes: classes.len(), items, queries, blends })
    }

    /// Every row of a blended class with one of the same other class, in the same proportion; every blended
    /// outlier with any other.
    fn blends(
        &self,
        bank: usize,
        classes: &[usize],
        items: &[Item],
        queries: &[(u32, u32)],
        rng: &mut Rng,
    ) -> Vec<Blend> {
        let EpisodeData { embeddings, outliers } = self.banks[bank];
        let others = embeddings.classes().len() - classes.len();
        if self.blended == 0.0 {
            return Vec::new();
        }
        let partners: Vec<Option<(usize, f32)>> = classes
            .iter()
            .map(|_| {
                let is_blended = rng.fraction() < self.blended && others > 0;
                is_blended.then(|| (any_but(classes, embeddings.classes().len(), rng), share(rng)))
            })
            .collect();
        let truths = items.iter().map(|item| item.truth);
        let truths = truths.chain(queries.iter().map(|&(_, class)| Some(class)));
        let blend = |(place, truth): (usize, Option<u32>)| match (truth, outliers) {
            (Some(class), _) => partners[class as usize].map(|(partner, share)| {
                let rows = embeddings.rows_of(partner);
                Blend { place, other: rows[rng.below(rows.len())], share }
            }),
            (None, Some(pool)) if rng.fraction() < self.blended => {
                Some(Blend { place, other: rng.below(pool.len()) as u32, share: share(rng) })
            }
            _ => None,
        };
        truths.enumerate().filter_map(blend).collect()
    }

    /// The rows of some drawn episodes, turned into `f32` in `scratch` where they are not, for a head to work on.
    pub fn with_rows<T>(
        &self,
        drawn: &[Drawn],
        scratch: &mut Vec<Rows>,
        work: impl FnOnce(&[head::Episode<'_>]) -> T,
    ) -> T {
        scratch.resize_with(scratch.len().max(drawn.len()), Rows::default);
        let gathered: Vec<Gathered<'_>> =
            drawn.iter().zip(scratch).map(|(drawn, buffer)| self.gather(drawn, buffer)).collect();
        let episodes: Vec<head::Episode<'_>> =
            drawn.iter().zip(&gathered).map(|(drawn, gathered)| gathered.episode(drawn)).collect();
        work(&episodes)
    }

    fn gather<'b>(&'b self, drawn: &Drawn, buffer: &'b mut Rows) -> Gathered<'b> {
        let EpisodeData { embeddings, outliers } = self.banks[drawn.bank];
        let items = drawn.items.iter().map(|item| (item.row, item.truth.is_none()));
        let queries = drawn.queries.iter().map(|&(row, _)| (row, false));
        let mut wanted: Vec<(u32, bool)> = items.chain(queries).collect();
        let count = wanted.len();
        let others = drawn.blends.iter().map(|blend| (blend.other, wanted[blend.place].1));
        wanted.extend(others.collect::<Vec<_>>());
        let mut rows = fetch(&EpisodeData { embeddings, outliers }, &wanted, &mut buffer.decoded);
        let others = rows.split_off(count);
        blend(&drawn.blends, &mut rows, &others, &mut buffer.blended);
        Gathered {
            rows,
            given: drawn.items.iter().map(|item| item.given).collect(),
            truth: drawn.items.iter().map(|item| item.truth).collect(),
            query_classes: drawn.queries.iter().map(|&(_, class)| class).collect(),
        }
    }
}

/// A number below `count` that is not among those taken; at least one is free.
fn any_but(taken: &[usize], count: usize, rng: &mut Rng) -> usize {
    loop {
        let class = rng.below(count);
        if !taken.contains(&class) {
            return class;
        }
    }
}

fn share(rng: &mut Rng) -> f32 {
    (LEAST_SHARE + (1.0 - 2.0 * LEAST_SHARE) * rng.fraction()) as f32
}

/// Puts the blends in the place of the rows they are made of.
fn blend<'a>(blends: &[Blend], rows: &mut [&'a [f32]], others: &[&'a [f32]], buffer: &'a mut Vec<f32>) {
    let dim = rows.first().map_or(0, |row| row.len());
    buffer.resize(blends.len() * dim, 0.0);
    let outs = buffer.chunks_exact_mut(dim.max(1));
    for ((&Blend { place, share, .. }, other), out) in blends.iter().zip(others).zip(outs) {
        for ((out, &own), &other) in out.iter_mut().zip(rows[place]).zip(*other) {
            *out = own + share * (other - own);
        }
        rows[place] = out;
    }
}

struct Gathered<'a> {
    rows: Vec<&'a [f32]>,
    given: Vec<u32>,
    truth: Vec<Option<u32>>,
    query_classes: Vec<u32>,
}

impl Gathered<'_> {
    fn episode(&self, drawn: &Drawn) -> head::Episode<'_> {
        let (support, queries) = self.rows.split_at(self.given.len());
        head::Episode {
            classes: drawn.classes,
            support,
            given: &self.given,
            truth: &self.truth,
            queries,
            query_classes: &self.query_classes,
        }
    }
}

impl<'a> Shape<'a> {
    /// Keeps the noise that is possible in episodes of that shape.
    pub fn new(
        bank: EpisodeData<'a>,
        images: Option<Arc<AugmentedCopies>>,
        spec: EpisodeSpec,
        noise: &[NoiseLevels],
    ) -> Result<Self> {
        let sampler = |noises: Vec<Noise>| {
            Sampler::with_images(bank.embeddings, images.clone(), bank.outliers, spec, noises)
        };
        let possible = |noise: Noise| match sampler(vec![noise]) {
            Ok(_) => Ok(Some(noise)),
            Err(Error::ImpossibleNoise { .. }) => Ok(None),
            Err(other) => Err(other),
        };
        let mut noises = Vec::new();
        for levels in noise {
            let levels: Vec<Option<Noise>> = levels.0.iter().map(|&n| possible(n)).collect::<Result<_>>()?;
            noises.push(levels.into_iter().flatten().collect::<Vec<Noise>>());
        }
        noises.retain(|levels| !levels.is_empty());
        if noises.is_empty() {
            // Nothing is possible: say so with the first of what was asked for.
            sampler(noise.iter().flat_map(|levels| levels.0.iter().copied()).collect())?;
        }
        Ok(Shape { sampler: sampler(noises.concat())?, noises })
    }
}

impl Shape<'_> {
    /// Makes noise as people make it: some of what is wrong are outliers, whatever the type of noise, and some places
    /// are spared, so that classes differ and a single wrong item among many occurs.
    fn mix(
        &self,
        episode: &Episode,
        items: &mut [Item],
        rng: &mut Rng,
        urn: &mut IndexSampler,
    ) -> Result<()> {
        let outlier = |noise: &&Noise| noise.kind == NoiseKind::Outlier && noise.level > 0.0;
        let levels: Vec<Noise> = self.noises.iter().flatten().filter(outlier).copied().collect();
        if !levels.is_empty() {
            let outliers = self.sampler.corrupt(episode, levels[rng.below(levels.len())], urn)?;
            let places = items.iter_mut().zip(outliers).filter(|(_, other)| other.truth.is_none());
            places.filter(|_| rng.fraction() < 0.5).for_each(|(item, outlier)| *item = outlier);
        }
        let clean = self.sampler.corrupt(episode, Noise { level: 0.0, ..self.noises[0][0] }, urn)?;
        let spared = rng.fraction();
        let wrong = items.iter_mut().zip(clean).filter(|(item, _)| item.is_wrong());
        wrong.filter(|_| rng.fraction() < spared).for_each(|(item, right)| *item = right);
        Ok(())
    }
}

/// The shapes of all numbers of shots. Of one file of several, those that its classes are too small for are left
/// out, so that they do not forbid many shots in the others.
fn those_that_fit<'a>(
    shots: &[CountRange],
    several: bool,
    shape: impl Fn(&CountRange) -> Result<Shape<'a>>,
) -> Result<Vec<Shape<'a>>> {
    let (mut fitting, mut misfit) = (Vec::new(), None);
    for shots in shots {
        match shape(shots) {
            Ok(shape) => fitting.push(shape),
            Err(small @ Error::TooFewItems { .. }) if several => misfit = Some(small),
            Err(other) => return Err(other),
        }
    }
    match misfit {
        Some(small) if fitting.is_empty() => Err(small),
        _ => Ok(fitting),
    }
}

/// Refuses a level that no shape allows: it would never be trained on.
pub(super) fn check_used<'s, 'a: 's>(
    shapes: impl Iterator<Item = &'s Shape<'a>> + Clone,
    noise: &[NoiseLevels],
) -> Result<()> {
    for &noise in noise.iter().flat_map(|levels| &levels.0) {
        let is_used = shapes.clone().any(|shape| shape.noises.iter().flatten().any(|used| *used == noise));
        if let Some(shape) = shapes.clone().last().filter(|_| !is_used) {
            return Err(shape.sampler.impossible(noise));
        }
    }
    Ok(())
}

/// All numbers of some spans; one that is named more often is drawn more often.
pub(super) fn numbers(spans: &[CountRange]) -> impl Iterator<Item = usize> {
    spans.iter().flat_map(|span| span.min..=span.max)
}

/// The episodes of one of some equal parts of a step.
pub(super) fn part(step: u64, per_step: usize, part: usize, parts: usize) -> Range<u64> {
    let place = |part: usize| step * per_step as u64 + (part * per_step / parts) as u64;
    place(part)..place(part + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_step() {
        for (per_step, parts) in [(16, 4), (5, 4), (3, 4), (32, 1)] {
            let all: Vec<u64> = (0..parts).flat_map(|p| part(7, per_step, p, parts)).collect();
            assert_eq!(all, (7 * per_step as u64..8 * per_step as u64).collect::<Vec<_>>());
        }
    }
}
