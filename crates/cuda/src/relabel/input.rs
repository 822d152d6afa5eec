//! The input of a training step of Relabel ([`StepInput`], which the caller fills), and its form on the device
//! ([`EncodedStep`]): one slot of 32-bit words (`kernels/relabel.cuh`).
//!
//! A slot begins with a [`Header`], followed by one list per kind of entry at the offsets of a [`StepLayout`]. The
//! lists hold the entries of all episodes without gaps. Structures with `repr(C)` have the fields of the structures in
//! the kernels.

use bytemuck::{Pod, Zeroable};
use trueshot_nn::relabel::dropout_batches;

/// The most items of a tile, whose labels a thread block keeps in shared memory (`TILE_ITEMS` in
/// `kernels/relabel.cuh`).
const TILE_ITEMS: usize = 32;

/// The features of a data set, `[rows, dim]`.
#[derive(Debug, Clone, Copy)]
pub struct FeatureSet<'a> {
    /// All rows, one after the other.
    pub values: &'a [f32],
    /// The length of a row.
    pub dim: usize,
}

/// The input of one step.
#[derive(Debug, Clone)]
pub struct StepInput {
    /// The learning rate.
    pub rate: f32,
    /// The episodes, in parts. The step's gradient is the mean over all episodes; parts matter for dropout only.
    pub parts: Vec<PartInput>,
}

/// Episodes with a dropout seed of their own.
#[derive(Debug, Clone)]
pub struct PartInput {
    /// The episodes.
    pub episodes: Vec<EpisodeInput>,
    /// The dropout seed, as of [`Head::losses`](trueshot_nn::head::Head::losses).
    pub seed: u64,
}

/// One episode of M items in C classes, with Q queries.
#[derive(Debug, Clone)]
pub struct EpisodeInput {
    /// The number of classes C.
    pub classes: usize,
    /// The given label of each item, `[M]`.
    pub given: Vec<u32>,
    /// The true class of each item, `[M]`; `None` if it belongs to no class of the episode.
    pub truth: Vec<Option<u32>>,
    /// The class of each query, `[Q]`.
    pub query_classes: Vec<u32>,
    /// The features of the items, then of the queries.
    pub rows: EpisodeRows,
}

/// The features of an episode: those of its items, then those of its queries.
#[derive(Debug, Clone)]
pub enum EpisodeRows {
    /// Rows that are on the device, all of the same length.
    Stored(Vec<StoredRow>),
    /// The next M + Q rows of the first feature set, in the order of the step's episodes: for features that a backbone
    /// computes in the same step.
    InOrder,
    /// The rows themselves, each of `dim` numbers. Steps with such rows run one by one.
    Given {
        /// The length of a row.
        dim: usize,
        /// All rows, one after the other.
        values: Vec<f32>,
    },
}

/// A row of the features on the device, possibly blended with another one: `row + share (other - row)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoredRow {
    /// The index of the data set.
    pub set: u32,
    /// The index of the row.
    pub row: u32,
    /// The index of the other row, in the same data set.
    pub other: u32,
    /// The weight of the other row.
    pub share: f32,
}

impl StoredRow {
    /// A row as it is.
    pub fn new(set: u32, row: u32) -> Self {
        StoredRow { set, row, other: row, share: 0.0 }
    }

    /// The row blended with another row of the same data set, whose weight is `share`.
    #[must_use]
    pub fn blended(self, other: u32, share: f32) -> Self {
        StoredRow { other, share, ..self }
    }
}

impl EpisodeInput {
    /// The number of states: one per item and class, M C.
    fn states(&self) -> usize {
        self.classes * self.given.len()
    }

    /// Checks the episode.
    ///
    /// # Panics
    /// If lengths disagree, a label is not below C, or there are no items or classes.
    fn check(&self) {
        let (items, queries) = (self.given.len(), self.query_classes.len());
        assert!(items > 0 && self.classes > 0, "an episode of {items} items in {} classes", self.classes);
        assert_eq!(self.truth.len(), items, "one true class per item");
        let mut labels =
            self.given.iter().chain(self.truth.iter().flatten()).chain(self.query_classes.iter());
        assert!(labels.all(|&label| (label as usize) < self.classes), "labels below {}", self.classes);
        match &self.rows {
            EpisodeRows::Stored(rows) => {
                assert_eq!(rows.len(), items + queries, "one row per item and query")
            }
            EpisodeRows::InOrder => {}
            EpisodeRows::Given { dim, values } => {
                assert_eq!(values.len(), (items + queries) * dim, "one row per item and query")
            }
        }
    }
}

/// The sizes of a step, or the maximum of each size over several steps. They decide how much memory a step needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StepSizes {
    pub episodes: usize,
    /// Tiles of all episodes. A tile is the work of one thread block: a few items of one episode with all their states.
    pub tiles: usize,
    /// Support items of all episodes.
    pub items: usize,
    /// States of all episodes: the sum of M C.
    pub states: usize,
    /// Pairs of items of all episodes: the sum of M M.
    pub pairs: usize,
    /// Classes of all episodes: the sum of C.
    pub class_rows: usize,
    /// Queries of all episodes.
    pub queries: usize,
    /// Inner products of items and queries of all episodes: the sum of M Q.
    pub products: usize,
    /// Weights of rows in the gradient of the features, see [`row_weights_len`].
    pub row_weights: usize,
    /// Floats that the losses of all episodes need, see [`loss_scratch_len`].
    pub scratch: usize,
    /// The largest M of an episode.
    pub largest_items: usize,
    /// The largest C of an episode.
    pub largest_classes: usize,
    /// The most floats that the losses of an episode need.
    pub largest_scratch: usize,
    /// The most thread blocks of `relabel_gram` for an episode: each computes 32 x 32 inner products.
    pub gram_tiles: usize,
    /// The most items of a tile.
    pub tile_items: usize,
    /// The most states of a tile.
    pub tile_states: usize,
    /// The most attention weights of one head in a tile, rows padded for shared memory.
    pub tile_pairs: usize,
}

impl StepSizes {
    /// Merges each size with that of `other` by the function `merge`.
    fn zip(self, other: Self, merge: impl Fn(usize, usize) -> usize) -> Self {
        let merged = |field: fn(&Self) -> usize| merge(field(&self), field(&other));
        StepSizes {
            episodes: merged(|s| s.episodes),
            tiles: merged(|s| s.tiles),
            items: merged(|s| s.items),
            states: merged(|s| s.states),
            pairs: merged(|s| s.pairs),
            class_rows: merged(|s| s.class_rows),
            queries: merged(|s| s.queries),
            products: merged(|s| s.products),
            row_weights: merged(|s| s.row_weights),
            scratch: merged(|s| s.scratch),
            largest_items: merged(|s| s.largest_items),
            largest_classes: merged(|s| s.largest_classes),
            largest_scratch: merged(|s| s.largest_scratch),
            gram_tiles: merged(|s| s.gram_tiles),
            tile_items: merged(|s| s.tile_items),
            tile_states: merged(|s| s.tile_states),
            tile_pairs: merged(|s| s.tile_pairs),
        }
    }

    /// The maximum of each size.
    pub fn max(self, other: Self) -> Self {
        self.zip(other, usize::max)
    }

    /// Whether a step of these sizes fits into buffers of the sizes `other`.
    pub fn fits(self, other: Self) -> bool {
        self.max(other) == other
    }

    /// The sizes that are sums over the episodes, increased by a quarter, so that buffers are seldom reallocated. The
    /// number of episodes and the maxima stay.
    pub fn with_room(self) -> Self {
        let more = |size: usize| size + size / 4;
        StepSizes {
            tiles: more(self.tiles),
            items: more(self.items),
            states: more(self.states),
            pairs: more(self.pairs),
            class_rows: more(self.class_rows),
            queries: more(self.queries),
            products: more(self.products),
            row_weights: more(self.row_weights),
            scratch: more(self.scratch),
            ..self
        }
    }
}

/// The first entry of a slot: the learning rate and the sizes of the step, which are sums over its episodes (`Header`
/// in `kernels/relabel.cuh`). Every class of an episode is a class row.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Header {
    episodes: u32,
    tiles: u32,
    rate: f32,
    items: u32,
    states: u32,
    class_rows: u32,
    padding: [u32; 2],
}

/// One episode: its sizes, and where its entries start in the lists of the slot and in the buffers (`Episode` in
/// `kernels/relabel.cuh`). The fields `first_...` are counted over all episodes of the step.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct DeviceEpisode {
    classes: u32,
    items: u32,
    queries: u32,
    first_item: u32,
    first_state: u32,
    first_pair: u32,
    /// The first class row (one row per class).
    first_class: u32,
    first_query: u32,
    /// The first entry in the list of rows of features: items, then queries.
    first_row: u32,
    /// The first inner product of an item with a query.
    first_product: u32,
    /// The first float of the memory for the losses.
    first_scratch: u32,
    first_tile: u32,
    tiles: u32,
    /// The length of a row of features.
    dim: u32,
    /// The number of items before this episode in its dropout batch, the episodes that share a dropout mask.
    batch_item: u32,
    // The dropout seed, a number of 64 bits.
    seed_low: u32,
    seed_high: u32,
    /// The first of the [`row_weights_len`] weights of rows.
    first_weight: u32,
}

/// The work of one thread block: `count` items of an episode, from number `first` on (`Tile` in `kernels/relabel.cuh`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Tile {
    episode: DeviceEpisode,
    first: u32,
    count: u32,
}

/// The features of an item or query: `own + share (other - own)` (`Row` in `kernels/relabel.cuh`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct DeviceRow {
    /// Address of a row on the device.
    own: u64,
    /// Address of the row it is blended with.
    other: u64,
    /// The weight of `other`; 0 for a row that is not blended.
    share: f32,
    /// 0 on the device; [`GIVEN`] until the addresses are known.
    padding: u32,
}

/// Marks a row whose addresses are still relative to the start of [`EncodedStep::given_rows`], because the address of
/// these on the device is not known yet.
const GIVEN: u32 = 1;

/// `StepLayout` in `kernels/relabel.cuh`: the start of each part of a slot, in words.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct StepLayout {
    /// The length of a slot in words.
    pub slot_len: u32,
    episodes: u32,
    tiles: u32,
    /// The given label of each item.
    given: u32,
    /// The true class of each item; the number of classes of its episode if it belongs to none of them.
    truths: u32,
    /// The class of each query.
    query_classes: u32,
    /// The number of items with each given label, for every class of every episode.
    counts: u32,
    /// The features of the items of an episode, then of its queries.
    rows: u32,
}

impl StepLayout {
    /// The layout for steps of up to these sizes.
    pub fn new(sizes: &StepSizes) -> Self {
        let mut end = 0;
        // Appends a list of this length and returns its start in words. Lists start at multiples of 16 bytes.
        let mut add = |bytes: usize| {
            let start = end;
            end += (bytes / 4).next_multiple_of(4) as u32;
            start
        };
        add(size_of::<Header>());
        StepLayout {
            episodes: add(sizes.episodes * size_of::<DeviceEpisode>()),
            tiles: add(sizes.tiles * size_of::<Tile>()),
            given: add(sizes.items * 4),
            truths: add(sizes.items * 4),
            query_classes: add(sizes.queries * 4),
            counts: add(sizes.class_rows * 4),
            rows: add((sizes.items + sizes.queries) * size_of::<DeviceRow>()),
            slot_len: end,
        }
    }
}

/// The features of one data set on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredSet {
    /// The address of the first row.
    pub address: u64,
    pub rows: usize,
    pub dim: usize,
}

/// A step as the device reads it.
pub(super) struct EncodedStep {
    header: Header,
    episodes: Vec<DeviceEpisode>,
    tiles: Vec<Tile>,
    given: Vec<u32>,
    truths: Vec<u32>,
    query_classes: Vec<u32>,
    counts: Vec<u32>,
    rows: Vec<DeviceRow>,
    pub sizes: StepSizes,
    /// The rows of [`EpisodeRows::Given`] of all episodes, which are copied to the device with the step.
    pub given_rows: Vec<f32>,
}

/// Floats that the losses of an episode need (`LossMemory` in `kernels/relabel_losses.cu`), values and gradients
/// together: three arrays `[M][C + 1]` of probabilities (of each class and of none), four `[C][M]` of the weights of
/// items in prototypes, two `[C][Q]` of the distances of queries, and two `[C]`.
fn loss_scratch_len(items: usize, classes: usize, queries: usize) -> usize {
    3 * items * (classes + 1) + 4 * items * classes + 2 * classes * queries + 2 * classes
}

/// Floats of the matrix from which the gradient of the features of an episode is computed: the gradient of a row is a
/// weighted sum of all `rows` rows. The matrix is stored in whole tiles of 16 x 8 weights (`row_weight_position` in
/// `kernels/relabel_joint.cu`).
fn row_weights_len(rows: usize) -> usize {
    rows.next_multiple_of(16) * rows.next_multiple_of(8)
}

impl EncodedStep {
    /// Encodes a step. `sets` are the data sets on the device; `tile_states` is the number of states that a tile should
    /// not exceed, unless one item has more.
    ///
    /// # Panics
    /// If an episode is not consistent, or a row does not exist.
    pub fn new(input: &StepInput, sets: &[StoredSet], tile_states: usize) -> Self {
        let mut step = EncodedStep {
            header: Header { rate: input.rate, ..Header::zeroed() },
            episodes: Vec::new(),
            tiles: Vec::new(),
            given: Vec::new(),
            truths: Vec::new(),
            query_classes: Vec::new(),
            counts: Vec::new(),
            rows: Vec::new(),
            sizes: StepSizes::default(),
            given_rows: Vec::new(),
        };
        for part in &input.parts {
            let states = part.episodes.iter().map(EpisodeInput::states);
            for (batch, seed) in dropout_batches(states, part.seed) {
                let mut batch_item = 0;
                for episode in &part.episodes[batch] {
                    step.add(episode, sets, tile_states, batch_item, seed);
                    batch_item += episode.given.len();
                }
            }
        }
        assert!(!step.episodes.is_empty(), "a step without episodes");
        let StepSizes { episodes, tiles, items, states, class_rows, .. } = step.sizes;
        step.header = Header {
            episodes: episodes as u32,
            tiles: tiles as u32,
            items: items as u32,
            states: states as u32,
            class_rows: class_rows as u32,
            ..step.header
        };
        step
    }

    /// Appends an episode. `batch_item` is the number of items before it in its dropout batch, `seed` the seed of that
    /// batch.
    fn add(
        &mut self,
        input: &EpisodeInput,
        sets: &[StoredSet],
        tile_states: usize,
        batch_item: usize,
        seed: u64,
    ) {
        input.check();
        let (items, classes, queries) = (input.given.len(), input.classes, input.query_classes.len());
        let first_row = self.rows.len();
        let dim = self.add_rows(&input.rows, items + queries, sets);
        // The sizes so far are also the starts of this episode's entries.
        let sizes = &mut self.sizes;
        // As few tiles as possible, of about the same size; a tile has all states of its items.
        let most_items = (tile_states / classes).clamp(1, TILE_ITEMS);
        let per_tile = items.div_ceil(items.div_ceil(most_items));
        let tiles = items.div_ceil(per_tile);
        let episode = DeviceEpisode {
            classes: classes as u32,
            items: items as u32,
            queries: queries as u32,
            first_item: sizes.items as u32,
            first_state: sizes.states as u32,
            first_pair: sizes.pairs as u32,
            first_class: sizes.class_rows as u32,
            first_query: sizes.queries as u32,
            first_row: first_row as u32,
            first_product: sizes.products as u32,
            first_scratch: sizes.scratch as u32,
            first_tile: sizes.tiles as u32,
            tiles: tiles as u32,
            dim: dim as u32,
            batch_item: batch_item as u32,
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            first_weight: sizes.row_weights as u32,
        };
        self.episodes.push(episode);
        for first in (0..items).step_by(per_tile) {
            let count = per_tile.min(items - first);
            self.tiles.push(Tile { episode, first: first as u32, count: count as u32 });
        }
        let scratch = loss_scratch_len(items, classes, queries);
        sizes.episodes += 1;
        sizes.tiles += tiles;
        sizes.items += items;
        sizes.states += items * classes;
        sizes.pairs += items * items;
        sizes.class_rows += classes;
        sizes.queries += queries;
        sizes.products += items * queries;
        sizes.row_weights += row_weights_len(items + queries);
        sizes.scratch += scratch;
        sizes.largest_items = sizes.largest_items.max(items);
        sizes.largest_classes = sizes.largest_classes.max(classes);
        sizes.largest_scratch = sizes.largest_scratch.max(scratch);
        sizes.gram_tiles = sizes.gram_tiles.max(items.div_ceil(32) * (items + queries).div_ceil(32));
        sizes.tile_items = sizes.tile_items.max(per_tile);
        sizes.tile_states = sizes.tile_states.max(per_tile * classes);
        // Rows of attention weights are `weight_pitch_of(items)` (`kernels/relabel.cuh`) floats apart.
        sizes.tile_pairs = sizes.tile_pairs.max(per_tile * (items.next_multiple_of(8) + 4));
        let mut counts = vec![0; classes];
        input.given.iter().for_each(|&class| counts[class as usize] += 1);
        self.counts.extend(counts);
        self.given.extend(&input.given);
        self.truths.extend(input.truth.iter().map(|class| class.unwrap_or(classes as u32)));
        self.query_classes.extend(&input.query_classes);
    }

    /// Appends the `count` rows of an episode and returns their dimension. Rows that are given directly get their
    /// position in `given_rows` as address, see [`EncodedStep::place_given_rows`].
    fn add_rows(&mut self, rows: &EpisodeRows, count: usize, sets: &[StoredSet]) -> usize {
        match rows {
            EpisodeRows::Stored(rows) => {
                let dim = rows.first().map_or(0, |row| sets[row.set as usize].dim);
                for row in rows {
                    let set = sets[row.set as usize];
                    assert_eq!(set.dim, dim, "rows of one episode have the same length");
                    let exists = (row.row.max(row.other) as usize) < set.rows;
                    assert!(exists, "{row:?} of {} rows", set.rows);
                    let address = |index: u32| set.address + 4 * index as u64 * dim as u64;
                    let (own, other) = (address(row.row), address(row.other));
                    self.rows.push(DeviceRow { own, other, share: row.share, padding: 0 });
                }
                dim
            }
            EpisodeRows::InOrder => {
                let StoredSet { address, rows, dim } = sets[0];
                let first = self.rows.len();
                assert!(first + count <= rows, "rows {first} to {} of {rows}", first + count);
                for index in first..first + count {
                    let own = address + 4 * (index * dim) as u64;
                    self.rows.push(DeviceRow { own, other: own, share: 0.0, padding: 0 });
                }
                dim
            }
            EpisodeRows::Given { dim, values } => {
                let start = self.given_rows.len();
                for index in 0..values.len() / (*dim).max(1) {
                    let own = 4 * (start + index * dim) as u64;
                    self.rows.push(DeviceRow { own, other: own, share: 0.0, padding: GIVEN });
                }
                self.given_rows.extend(values);
                *dim
            }
        }
    }

    /// Completes the addresses of the rows that are given directly, which the device has at `address`.
    pub fn place_given_rows(&mut self, address: u64) {
        for row in self.rows.iter_mut().filter(|row| row.padding == GIVEN) {
            *row = DeviceRow { own: address + row.own, other: address + row.other, share: 0.0, padding: 0 };
        }
    }

    /// The length of the rows of each episode.
    pub fn dims(&self) -> impl Iterator<Item = usize> {
        self.episodes.iter().map(|episode| episode.dim as usize)
    }

    /// Writes the step into a slot, `[slot_len]`. What an earlier step has left beyond the lists of this one is not
    /// read.
    pub fn write(&self, layout: &StepLayout, slot: &mut [u32]) {
        fn put<T: Pod>(slot: &mut [u32], start: u32, values: &[T]) {
            let words: &[u32] = bytemuck::cast_slice(values);
            slot[start as usize..start as usize + words.len()].copy_from_slice(words);
        }
        put(slot, 0, &[self.header]);
        put(slot, layout.episodes, &self.episodes);
        put(slot, layout.tiles, &self.tiles);
        put(slot, layout.given, &self.given);
        put(slot, layout.truths, &self.truths);
        put(slot, layout.query_classes, &self.query_classes);
        put(slot, layout.counts, &self.counts);
        put(slot, layout.rows, &self.rows);
    }
}
