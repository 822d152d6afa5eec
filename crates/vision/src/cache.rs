//! The cache of embeddings on disk, keyed by backbone and by the contents of the image. Start with [`EmbeddingCache`],
//! which [`Embedder`](crate::Embedder) uses.
//!
//! Each backbone with its preprocessing has a folder, named by a hash of its identity. A *record* is what is stored
//! about one image: its embedding and its measures. New records are collected in memory and then written as a *pack*, a
//! file of many records. A pack is written whole and never changed, so any number of programs can share the folder
//! without locks. Every record has a checksum and is used only if the checksum matches. Problems of the cache are not
//! errors: the caller computes embeddings again whose records cannot be read, and records that cannot be written are
//! dropped. When all packs together are too large, the least recently used ones are removed.
//!
//! A server writes a small pack for almost every request. Therefore many small packs are merged into one, and packs are
//! opened when a record is read: only a few are open at the same time, and none after [`EmbeddingCache::flush`].
//!
//! A pack, integers and floats little-endian; first the index of all records, then all records in the same order:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `trucach2` |
//! | 4, 4 | the length of an embedding, the number of records |
//! | index, per record: 32, 8 | the hash of the image's contents (the key), the checksum of key and record |
//! | per record: 4 per value, then [`ImageMeasures::BYTES`] | the embedding as f32, the measures of the image |

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use trueshot::atomic::write_atomically;
use trueshot::audit::ImageMeasures;

const MAGIC: &[u8; 8] = b"trucach2";
/// The first two lines of the table above.
const HEADER_BYTES: u64 = 16;
/// Key and checksum of one record, in the index of a pack.
const ENTRY_BYTES: u64 = 40;
/// The most bytes of all packs: some 170,000 images with embeddings of 1,280 numbers.
const MAX_BYTES: u64 = 1 << 30;
/// If a backbone has more small packs than this, they are merged.
const MAX_SMALL_PACKS: usize = 32;
/// Packs of at least this size are not small.
const SMALL_PACK_BYTES: u64 = 8 << 20;
/// The most packs that are open at the same time.
const MAX_OPEN_PACKS: usize = 16;
/// Values that are collected before they are written as a pack: 16 MiB.
const MAX_PENDING_VALUES: usize = 4 << 20;

/// The BLAKE3 hash of an image's contents: of its file, or of its pixels if it is not a file.
pub type ContentHash = [u8; 32];

/// Where embeddings are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CacheLocation {
    /// In the user's cache folder, if there is one.
    #[default]
    Default,
    /// In this folder.
    Folder(PathBuf),
    /// Do not cache.
    Disabled,
}

impl CacheLocation {
    /// The folder, if there is one.
    pub fn folder(&self) -> Option<PathBuf> {
        match self {
            CacheLocation::Disabled => None,
            CacheLocation::Folder(folder) => Some(folder.clone()),
            CacheLocation::Default => default_folder(&|name| std::env::var_os(name).map(PathBuf::from)),
        }
    }
}

/// `$XDG_CACHE_HOME/trueshot`, or its equivalent on other systems. Relative paths in the variables are ignored.
fn default_folder(variable: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    let folder = absolute("XDG_CACHE_HOME").or_else(|| absolute("LOCALAPPDATA")).or_else(home)?;
    Some(folder.join("trueshot"))
}

/// The cached embeddings of one backbone. Threads share it.
pub struct EmbeddingCache {
    /// The folder of all backbones.
    root: PathBuf,
    /// The folder of this backbone, in `root`.
    folder: PathBuf,
    /// The length of an embedding.
    dim: usize,
    /// The most bytes of all packs in `root`.
    max_bytes: u64,
    state: Mutex<CacheState>,
}

#[derive(Default)]
struct CacheState {
    /// The packs of this backbone. Some may have been removed since, by this or another program.
    packs: Vec<PathBuf>,
    /// Packs that are open for reading, with their indices in `packs`. At most [`MAX_OPEN_PACKS`]; the most recently
    /// used one is last.
    open_packs: Vec<(usize, File)>,
    /// Where the record of each image is.
    records: HashMap<ContentHash, RecordLocation>,
    /// Records that are not written yet.
    pending: Vec<(ContentHash, CachedImage)>,
    /// The last reason why a pack could not be written. It stays when later packs are written: the embeddings of the
    /// earlier pack were not kept, and the caller reports that at the end.
    problem: Option<String>,
}

impl CacheState {
    /// The pack with this index, open for reading.
    fn open_pack(&mut self, pack: usize) -> std::io::Result<&mut File> {
        let opened = match self.open_packs.iter().position(|(index, _)| *index == pack) {
            Some(position) => self.open_packs.remove(position),
            None => (pack, File::open(&self.packs[pack])?),
        };
        if self.open_packs.len() == MAX_OPEN_PACKS {
            self.open_packs.remove(0);
        }
        self.open_packs.push(opened);
        Ok(&mut self.open_packs.last_mut().expect("pushed above").1)
    }
}

/// The record of an image: what is stored about it.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedImage {
    /// The embedding.
    pub row: Vec<f32>,
    /// The measures of the decoded image.
    pub measures: ImageMeasures,
}

/// Where a record is.
#[derive(Clone, Copy)]
enum RecordLocation {
    /// In the list of records that are not written yet, at this index.
    Pending(usize),
    /// In the pack with this index in the list of packs, from the byte `offset` on.
    Packed { pack: usize, offset: u64, checksum: [u8; 8] },
}

impl EmbeddingCache {
    /// Opens the cache in the folder `root` for a backbone with this [identity](crate::Backbone::identity) and
    /// embeddings of length `dim`, and lists its records. The folder need not exist.
    pub fn open(root: &Path, identity: &str, dim: usize) -> Self {
        let folder = root.join(folder_name(identity));
        let cache = EmbeddingCache {
            root: root.into(),
            folder,
            dim,
            max_bytes: MAX_BYTES,
            state: Mutex::new(CacheState::default()),
        };
        cache.index(&mut cache.state());
        cache
    }

    /// Sets the limit on the bytes of all packs below the folder.
    #[cfg(test)]
    fn with_limit(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The embedding and the measures of an image, if they are stored and intact; otherwise the caller computes them.
    pub fn get(&self, key: &ContentHash) -> Option<CachedImage> {
        let mut state = self.state();
        let mut location = *state.records.get(key)?;
        if let RecordLocation::Packed { pack, .. } = location
            && state.open_pack(pack).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        {
            // The pack was removed. If another program has merged it, the record is in another pack.
            self.index(&mut state);
            location = *state.records.get(key)?;
        }
        let (pack, offset, checksum) = match location {
            RecordLocation::Pending(index) => return Some(state.pending[index].1.clone()),
            RecordLocation::Packed { pack, offset, checksum } => (pack, offset, checksum),
        };
        let record = state.open_pack(pack).ok().and_then(|file| read_record(file, offset, self.dim));
        drop(state);
        let image = decode(&record.filter(|record| checksum_of(key, record) == checksum)?, self.dim)?;
        // The checksum does not exclude NaN: `put` does not check the values.
        image.row.iter().all(|value| value.is_finite()).then_some(image)
    }

    /// Stores the embedding and the measures of an image, in memory until the next [`flush`](Self::flush).
    ///
    /// # Panics
    /// If the length of the embedding is not the dimension of the backbone.
    pub fn put(&self, key: ContentHash, image: CachedImage) {
        assert_eq!(image.row.len(), self.dim, "numbers of an embedding");
        let mut state = self.state();
        let index = state.pending.len();
        state.records.insert(key, RecordLocation::Pending(index));
        state.pending.push((key, image));
    }

    /// Writes the collected records if they are enough for a pack.
    pub fn flush_if_large(&self) {
        if self.state().pending.len() * self.dim >= MAX_PENDING_VALUES {
            self.flush();
        }
    }

    /// Writes the collected records as a pack, removes the least recently used packs beyond the limit, and merges small
    /// packs if there are many. Closes all packs, so that the space of removed ones is freed.
    pub fn flush(&self) {
        let mut state = self.state();
        state.open_packs.clear();
        let pending = std::mem::take(&mut state.pending);
        if pending.is_empty() {
            return;
        }
        // `index_pack` adds these records again, at their locations in the pack. If the pack cannot be written, they
        // are lost.
        for (key, _) in &pending {
            state.records.remove(key);
        }
        match self.write(&pending) {
            Ok(path) => {
                self.index_pack(&mut state, &path);
                self.prune(&path);
                if self.small_packs().len() > MAX_SMALL_PACKS {
                    self.index(&mut state);
                }
            }
            Err(problem) => state.problem = Some(problem),
        }
    }

    /// Writes the collected records, and returns [`problem`](Self::problem).
    pub fn finish(&self) -> Option<String> {
        self.flush();
        self.problem()
    }

    /// Why embeddings could not be written since the cache was opened; `None` if all were written.
    pub fn problem(&self) -> Option<String> {
        self.state().problem.clone()
    }

    /// Ignores poisoning: a thread that panicked left the state consistent.
    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The paths of the packs of this backbone.
    fn packs(&self) -> Vec<PathBuf> {
        packs_in(&self.folder)
    }

    /// The paths of the small packs of this backbone.
    fn small_packs(&self) -> Vec<PathBuf> {
        let is_small =
            |path: &PathBuf| std::fs::metadata(path).is_ok_and(|metadata| metadata.len() < SMALL_PACK_BYTES);
        self.packs().into_iter().filter(is_small).collect()
    }

    /// Merges small packs if there are many, and lists the records of all packs anew.
    fn index(&self, state: &mut CacheState) {
        let small = self.small_packs();
        if small.len() > MAX_SMALL_PACKS {
            self.merge(&small);
        }
        state.packs.clear();
        state.open_packs.clear();
        state.records.retain(|_, location| matches!(location, RecordLocation::Pending(_)));
        for path in self.packs() {
            self.index_pack(state, &path);
        }
    }

    /// Adds the records of a pack to those that can be read; removes a file that is not a valid pack.
    fn index_pack(&self, state: &mut CacheState, path: &Path) {
        let Ok(mut file) = File::open(path) else { return };
        let Some(entries) = read_entries(&mut file, self.dim) else {
            let _ = std::fs::remove_file(path);
            return;
        };
        let pack = state.packs.len();
        let first_record = HEADER_BYTES + ENTRY_BYTES * entries.len() as u64;
        for (index, (key, checksum)) in entries.into_iter().enumerate() {
            let offset = first_record + (index * record_bytes(self.dim)) as u64;
            state.records.insert(key, RecordLocation::Packed { pack, offset, checksum });
        }
        state.packs.push(path.into());
        // Marks the pack as recently used. In a read-only folder this does nothing.
        let _ = File::options().append(true).open(path).and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Writes a pack, named by the hash of its bytes, and returns its path, or why it could not be written.
    fn write(&self, images: &[(ContentHash, CachedImage)]) -> Result<PathBuf, String> {
        std::fs::create_dir_all(&self.folder).map_err(|error| error.to_string())?;
        let records: Vec<(&ContentHash, Vec<u8>)> =
            images.iter().map(|(key, image)| (key, encode(image))).collect();
        let entry_and_record = ENTRY_BYTES as usize + record_bytes(self.dim);
        let mut bytes = Vec::with_capacity(records.len() * entry_and_record + HEADER_BYTES as usize);
        bytes.extend(MAGIC);
        bytes.extend((self.dim as u32).to_le_bytes());
        bytes.extend((records.len() as u32).to_le_bytes());
        for (key, record) in &records {
            bytes.extend(*key);
            bytes.extend(checksum_of(key, record));
        }
        records.iter().for_each(|(_, record)| bytes.extend(record));
        let name = format!("{}.rows", &blake3::hash(&bytes).to_hex()[..32]);
        let path = self.folder.join(name);
        write_atomically(&path, |out| out.write_all(&bytes)).map_err(|error| error.to_string())?;
        Ok(path)
    }

    /// Writes the intact records of some packs as one pack, and removes these packs.
    fn merge(&self, packs: &[PathBuf]) {
        let mut images = HashMap::new();
        for path in packs {
            let Ok(mut file) = File::open(path) else { continue };
            let Some(entries) = read_entries(&mut file, self.dim) else { continue };
            let first_record = HEADER_BYTES + ENTRY_BYTES * entries.len() as u64;
            for (index, (key, checksum)) in entries.into_iter().enumerate() {
                let offset = first_record + (index * record_bytes(self.dim)) as u64;
                let record = read_record(&mut file, offset, self.dim);
                let record = record.filter(|record| checksum_of(&key, record) == checksum);
                if let Some(image) = record.and_then(|record| decode(&record, self.dim)) {
                    images.insert(key, image);
                }
            }
        }
        let mut images: Vec<(ContentHash, CachedImage)> = images.into_iter().collect();
        // A pack is named by the hash of its bytes. In a fixed order of records, programs that merge the same packs at
        // the same time write the same file rather than several copies.
        images.sort_by_key(|(key, _)| *key);
        let Ok(merged) = self.write(&images) else { return };
        // The merged pack is one of the given ones, with the same name, if that one contained all intact records.
        for path in packs.iter().filter(|path| **path != merged) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Removes the least recently used packs, of all backbones, until the remaining ones are within the limit. The pack
    /// `newest` is kept.
    fn prune(&self, newest: &Path) {
        let folders = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let packs = folders.flat_map(|folder| packs_in(&folder.path())).filter_map(|path| {
            let metadata = std::fs::metadata(&path).ok()?;
            Some((metadata.modified().ok()?, metadata.len(), path))
        });
        let mut packs: Vec<(SystemTime, u64, PathBuf)> = packs.collect();
        // By time: the least recently used first.
        packs.sort();
        let mut total: u64 = packs.iter().map(|(_, length, _)| length).sum();
        for (_, length, path) in packs {
            if total <= self.max_bytes {
                break;
            }
            if path != newest && std::fs::remove_file(&path).is_ok() {
                total -= length;
            }
        }
    }
}

impl Drop for EmbeddingCache {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The name of the folder of a backbone. It contains a version of decoding and resizing (the 2 in `pictures/2`). When
/// one of these changes its results, the version must change: old and new embeddings must not mix.
fn folder_name(identity: &str) -> String {
    blake3::hash(format!("pictures/2 {identity}").as_bytes()).to_hex()[..16].to_owned()
}

/// The packs in a folder, sorted by name.
fn packs_in(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    let mut packs: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "rows")).collect();
    packs.sort();
    packs
}

/// The bytes of a record with an embedding of `dim` values, each an f32 of 4 bytes.
fn record_bytes(dim: usize) -> usize {
    dim * 4 + ImageMeasures::BYTES
}

/// A record as it is stored in a pack.
fn encode(image: &CachedImage) -> Vec<u8> {
    let mut bytes: Vec<u8> = image.row.iter().flat_map(|value| value.to_le_bytes()).collect();
    bytes.extend(image.measures.to_bytes());
    bytes
}

/// Reverses [`encode`]; `None` if the length is wrong.
fn decode(bytes: &[u8], dim: usize) -> Option<CachedImage> {
    let (row, measures) = bytes.split_at_checked(dim * 4)?;
    let row = row.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Some(CachedImage { row, measures: ImageMeasures::from_bytes(measures)? })
}

/// The checksum of a stored record: the first 8 bytes of the BLAKE3 hash of its key and its bytes.
fn checksum_of(key: &ContentHash, record: &[u8]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key);
    hasher.update(record);
    let mut checksum = [0; 8];
    checksum.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    checksum
}

/// The keys and checksums in the index of a pack, in the order of its records; `None` if the file is truncated or is
/// not a pack of embeddings of length `dim`.
fn read_entries(file: &mut File, dim: usize) -> Option<Vec<(ContentHash, [u8; 8])>> {
    let length = file.metadata().ok()?.len();
    let mut header = [0; HEADER_BYTES as usize];
    file.read_exact(&mut header).ok()?;
    let number_at = |start: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[start + byte]));
    let (stored_dim, count) = (u64::from(number_at(8)), u64::from(number_at(12)));
    let expected_length = HEADER_BYTES + count * ENTRY_BYTES + count * record_bytes(dim) as u64;
    if &header[..8] != MAGIC || stored_dim != dim as u64 || expected_length != length {
        return None;
    }
    let mut entries = vec![0; (count * ENTRY_BYTES) as usize];
    file.read_exact(&mut entries).ok()?;
    let entry = |entry: &[u8; ENTRY_BYTES as usize]| {
        let (mut key, mut checksum) = ([0; 32], [0; 8]);
        key.copy_from_slice(&entry[..32]);
        checksum.copy_from_slice(&entry[32..]);
        (key, checksum)
    };
    Some(entries.as_chunks().0.iter().map(entry).collect())
}

/// The bytes of the record at an offset of a pack.
fn read_record(file: &mut File, offset: u64, dim: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; record_bytes(dim)];
    file.seek(SeekFrom::Start(offset)).ok()?;
    file.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> ContentHash {
        [number; 32]
    }

    fn image(row: &[f32]) -> CachedImage {
        let measures = ImageMeasures::of_grey(4, 2, &[7; 8], &[9; ImageMeasures::THUMBNAIL_LEN]);
        CachedImage { row: row.to_vec(), measures }
    }

    #[test]
    fn what_was_put_is_found_again_by_the_same_backbone_only() {
        let root = tempfile::tempdir().unwrap();
        let cache = EmbeddingCache::open(root.path(), "a", 3);
        cache.put(key(1), image(&[1.0, 2.0, 3.0]));
        assert_eq!(cache.get(&key(1)), Some(image(&[1.0, 2.0, 3.0])));
        drop(cache);
        let again = EmbeddingCache::open(root.path(), "a", 3);
        assert_eq!(again.get(&key(1)), Some(image(&[1.0, 2.0, 3.0])));
        assert_eq!(again.get(&key(2)), None);
        assert_eq!(EmbeddingCache::open(root.path(), "b", 3).get(&key(1)), None);
    }

    #[test]
    fn damaged_records_are_not_used_and_files_that_are_not_packs_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let cache = EmbeddingCache::open(root.path(), "a", 2);
        (0..4).for_each(|number| cache.put(key(number), image(&[f32::from(number), 1.0])));
        drop(cache);
        let path = packs_in(&root.path().join(folder_name("a"))).pop().unwrap();
        let intact = std::fs::read(&path).unwrap();
        for position in 0..intact.len() {
            let mut damaged = intact.clone();
            damaged[position] ^= 0x40;
            std::fs::write(&path, &damaged).unwrap();
            let cache = EmbeddingCache::open(root.path(), "a", 2);
            let images: Vec<Option<CachedImage>> = (0..4).map(|number| cache.get(&key(number))).collect();
            for (number, read) in images.iter().enumerate() {
                assert!(
                    read.is_none() || *read == Some(image(&[number as f32, 1.0])),
                    "{position}: {read:?}"
                );
            }
            assert!(images.iter().any(Option::is_none), "damage of byte {position} is not noticed");
        }
        for length in 0..intact.len() {
            std::fs::write(&path, &intact[..length]).unwrap();
            assert_eq!(EmbeddingCache::open(root.path(), "a", 2).get(&key(1)), None);
            assert!(!path.exists(), "a truncated pack is removed");
        }
    }

    #[test]
    fn many_small_packs_become_one() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..40 {
            EmbeddingCache::open(root.path(), "a", 1).put(key(number), image(&[f32::from(number)]));
        }
        let cache = EmbeddingCache::open(root.path(), "a", 1);
        assert!(cache.packs().len() < 40);
        (0..40).for_each(|number| assert_eq!(cache.get(&key(number)), Some(image(&[f32::from(number)]))));
    }

    /// The number of files below a folder that this process has open, including removed files.
    #[cfg(target_os = "linux")]
    fn open_files_below(folder: &Path) -> usize {
        let folder = folder.canonicalize().unwrap();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
        targets.filter(|target| target.starts_with(&folder)).count()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn many_flushes_leave_few_packs_and_none_of_them_open() {
        let root = tempfile::tempdir().unwrap();
        let cache = EmbeddingCache::open(root.path(), "a", 1);
        for number in 0..100 {
            cache.put(key(number), image(&[f32::from(number)]));
            cache.flush();
            assert_eq!(open_files_below(root.path()), 0, "after flush {number}");
            assert!(cache.packs().len() <= MAX_SMALL_PACKS, "after flush {number}");
        }
        for number in 0..100 {
            assert_eq!(cache.get(&key(number)), Some(image(&[f32::from(number)])));
            assert!((1..=MAX_OPEN_PACKS).contains(&open_files_below(root.path())));
        }
        cache.flush();
        assert_eq!(open_files_below(root.path()), 0);
    }

    #[test]
    fn more_packs_than_can_be_open_are_read_in_any_order() {
        let root = tempfile::tempdir().unwrap();
        let cache = EmbeddingCache::open(root.path(), "a", 1);
        let count = MAX_OPEN_PACKS as u8 + 4;
        for number in 0..count {
            cache.put(key(number), image(&[f32::from(number)]));
            cache.flush();
        }
        assert_eq!(cache.packs().len(), usize::from(count));
        for number in (0..count).chain((0..count).rev()).chain([0, 5, 0, 5]) {
            assert_eq!(cache.get(&key(number)), Some(image(&[f32::from(number)])));
            assert!(cache.state().open_packs.len() <= MAX_OPEN_PACKS);
        }
    }

    #[test]
    fn records_are_found_after_another_program_has_merged_the_packs_and_missed_after_it_has_removed_them() {
        let root = tempfile::tempdir().unwrap();
        let cache = EmbeddingCache::open(root.path(), "a", 1);
        for number in 0..3 {
            cache.put(key(number), image(&[f32::from(number)]));
            cache.flush();
        }
        // This pack is open while it is removed.
        assert!(cache.get(&key(0)).is_some());
        EmbeddingCache::open(root.path(), "a", 1).merge(&cache.packs());
        assert_eq!(cache.packs().len(), 1);
        (0..3).for_each(|number| assert_eq!(cache.get(&key(number)), Some(image(&[f32::from(number)]))));
        cache.flush();
        cache.packs().iter().for_each(|path| std::fs::remove_file(path).unwrap());
        cache.put(key(7), image(&[7.0]));
        (0..3).for_each(|number| assert_eq!(cache.get(&key(number)), None));
        assert_eq!(cache.get(&key(7)), Some(image(&[7.0])), "not written yet");
        cache.put(key(0), image(&[0.0]));
        cache.flush();
        assert_eq!(cache.get(&key(0)), Some(image(&[0.0])));
        assert_eq!(cache.get(&key(7)), Some(image(&[7.0])));
        assert_eq!(cache.problem(), None);
    }

    #[test]
    fn the_least_recently_used_pack_is_removed_first() {
        let root = tempfile::tempdir().unwrap();
        let pack = |backbone: &str, number: u8| {
            let cache = EmbeddingCache::open(root.path(), backbone, 100).with_limit(1000);
            cache.put(key(number), image(&[1.0; 100]));
        };
        pack("a", 1);
        std::thread::sleep(std::time::Duration::from_millis(20));
        pack("b", 2);
        std::thread::sleep(std::time::Duration::from_millis(20));
        pack("c", 3);
        assert_eq!(EmbeddingCache::open(root.path(), "a", 100).get(&key(1)), None);
        assert!(EmbeddingCache::open(root.path(), "c", 100).get(&key(3)).is_some());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_problem_but_not_an_error() {
        let root = tempfile::NamedTempFile::new().unwrap();
        let cache = EmbeddingCache::open(root.path(), "a", 1);
        cache.put(key(1), image(&[1.0]));
        cache.flush();
        assert!(cache.problem().is_some());
        assert_eq!(cache.get(&key(1)), None);
    }

    #[test]
    fn the_default_folder_is_in_the_cache_folder_of_the_user() {
        let folder_with = |variables: &'static [(&'static str, &'static str)]| {
            default_folder(&|name| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, path)| PathBuf::from(*path))
            })
        };
        assert_eq!(folder_with(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), Some("/x/trueshot".into()));
        assert_eq!(
            folder_with(&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")]),
            Some("/h/.cache/trueshot".into())
        );
        assert_eq!(folder_with(&[]), None);
    }
}
