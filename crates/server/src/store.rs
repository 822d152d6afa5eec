//! The store of classifiers ([`Store`]). Each is one file, named by a hash of its contents: names never come from a
//! request, the same classifier is stored once, and changes of a file are detected. A file is written completely or not
//! at all, and is on the disk before the client gets its response.
//!
//! A server locks the folder, because it keeps a list of the files in memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use serde::Serialize;
use trueshot::atomic::write_atomically;
use trueshot::lock::Lock;
use trueshot::predictor::Predictor;
use trueshot::report::visible;
use utoipa::ToSchema;

use crate::limits::MAX_CLASSIFIERS;
use crate::problem::Problem;

/// The extension of the files, named `ID.safetensors`.
const EXTENSION: &str = "safetensors";
/// The number of hexadecimal digits of an id: 128 bits of the BLAKE3 hash of the file.
const ID_LEN: usize = 32;
/// The maximum number of classifiers in memory.
const MAX_LOADED: usize = 8;
/// Temporary files older than this belong to a process that was killed.
const ABANDONED_AGE: Duration = Duration::from_secs(3600);

/// Description of a stored classifier.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Metadata)]
pub struct ClassifierMetadata {
    /// The id of the classifier: a hash of its file.
    pub id: String,
    /// The method that the classifier was fitted with.
    pub method: String,
    /// The names of the classes.
    pub classes: Vec<String>,
    /// Number of items in the support set.
    pub items: usize,
    /// Dimension of the rows.
    pub numbers: usize,
    /// The network that computed the rows, if known. Images can be classified if it is the network of the server.
    pub embedder: Option<String>,
    /// When the classifier was stored, in seconds since 1970.
    pub created: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// The folder with all classifiers.
pub struct Store {
    folder: PathBuf,
    metadata_by_id: Mutex<BTreeMap<String, ClassifierMetadata>>,
    /// Classifiers in memory, the most recently used last.
    loaded: Mutex<Vec<LoadedClassifier>>,
    /// Held while a file is written or deleted together with its entry in the list.
    change_lock: Mutex<()>,
    /// Keeps other servers out of the folder.
    _folder_lock: Lock,
}

/// A classifier in memory.
struct LoadedClassifier {
    id: String,
    predictor: Arc<Predictor>,
    /// The stamp of the file when it was read or written.
    stamp: FileStamp,
}

/// Detects a changed file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    length: u64,
    modified: SystemTime,
}

impl FileStamp {
    fn read(path: &Path) -> std::io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(FileStamp { length: metadata.len(), modified: metadata.modified()? })
    }
}

impl Store {
    /// Opens a folder, which is created if necessary. Also returns a warning for every file that cannot be read;
    /// these files are not changed.
    ///
    /// # Errors
    /// [`trueshot::Error::Locked`] if another server uses the folder.
    pub fn open(folder: &Path) -> trueshot::Result<(Self, Vec<String>)> {
        let folder = folder.join("classifiers");
        let refused = |source| trueshot::Error::Write { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(refused)?;
        let folder_lock = Lock::on_folder(&folder)?;
        let (mut metadata_by_id, mut warnings) = (BTreeMap::new(), Vec::new());
        let mut files: Vec<PathBuf> =
            fs::read_dir(&folder).map_err(refused)?.flatten().map(|entry| entry.path()).collect();
        files.sort();
        for path in files {
            if is_abandoned(&path) {
                let _ = fs::remove_file(&path);
            }
            let Some(id) = parse_id(&path) else { continue };
            match read(&path, &id) {
                Ok(metadata) => drop(metadata_by_id.insert(id, metadata)),
                Err(problem) => warnings.push(format!("{} is skipped: {problem}", path.display())),
            }
        }
        let (metadata_by_id, loaded, change_lock) =
            (Mutex::new(metadata_by_id), Mutex::default(), Mutex::default());
        Ok((Store { folder, metadata_by_id, loaded, change_lock, _folder_lock: folder_lock }, warnings))
    }

    /// All classifiers, sorted by id.
    pub fn list(&self) -> Vec<ClassifierMetadata> {
        self.metadata_by_id().values().cloned().collect()
    }

    /// The description of a classifier. Fails with 404 if the id is unknown.
    pub fn metadata(&self, id: &str) -> Result<ClassifierMetadata, Problem> {
        self.metadata_by_id().get(id).cloned().ok_or_else(|| no_such_classifier(id))
    }

    /// Stores a classifier. It is on the disk when this returns.
    pub fn save(&self, predictor: Predictor) -> Result<ClassifierMetadata, Problem> {
        let bytes = predictor.to_bytes();
        let id = content_id(&bytes);
        let _changing = lock(&self.change_lock);
        // A known classifier is written again only if its file is missing or has changed.
        let known = self.metadata(&id).ok();
        if let Some(known) = known.clone().filter(|_| self.bytes(&id).is_ok()) {
            return Ok(known);
        }
        if known.is_none() && self.metadata_by_id().len() >= MAX_CLASSIFIERS {
            let error = format!("{MAX_CLASSIFIERS} classifiers are stored already, which is the maximum");
            return Err(Problem::new(StatusCode::CONFLICT, error)
                .hint("delete classifiers that are no longer needed"));
        }
        let path = self.path(&id);
        write_atomically(&path, |file| file.write_all(&bytes))?;
        sync_folder(&self.folder);
        let metadata = describe(&predictor, &id, bytes.len() as u64, SystemTime::now());
        self.metadata_by_id().insert(id.clone(), metadata.clone());
        if let Ok(stamp) = FileStamp::read(&path) {
            self.keep_loaded(LoadedClassifier { id, predictor: Arc::new(predictor), stamp });
        }
        Ok(metadata)
    }

    /// Loads a classifier, or returns it if it is in memory.
    pub fn predictor(&self, id: &str) -> Result<Arc<Predictor>, Problem> {
        self.metadata(id)?;
        let stamp = FileStamp::read(&self.path(id)).map_err(|error| read_problem(id, error))?;
        let in_memory = self
            .loaded()
            .iter()
            .find(|loaded| loaded.id == id && loaded.stamp == stamp)
            .map(|loaded| loaded.predictor.clone());
        let predictor = match in_memory {
            Some(predictor) => predictor,
            None => {
                let predictor = Predictor::read_bytes(self.bytes(id)?, id);
                Arc::new(predictor.map_err(|error| Problem::failed("opening a classifier", error))?)
            }
        };
        self.keep_loaded(LoadedClassifier { id: id.to_owned(), predictor: predictor.clone(), stamp });
        Ok(predictor)
    }

    /// The bytes of a classifier's file, if they match the id.
    pub fn bytes(&self, id: &str) -> Result<Vec<u8>, Problem> {
        self.metadata(id)?;
        let bytes = fs::read(self.path(id)).map_err(|error| read_problem(id, error))?;
        if content_id(&bytes) != id {
            let path = self.path(id).display().to_string();
            eprintln!("error: {} has changed since it was stored, and is not used", visible(&path));
            let error =
                format!("the file of classifier '{id}' has changed on the server's disk since it was stored");
            return Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error)
                .hint("restore the file, fit the classifier again, or delete it"));
        }
        Ok(bytes)
    }

    /// Deletes a classifier. A file that is already missing is not an error.
    pub fn delete(&self, id: &str) -> Result<(), Problem> {
        let _changing = lock(&self.change_lock);
        self.metadata(id)?;
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Problem::failed("deleting a classifier", error));
            }
            _ => sync_folder(&self.folder),
        }
        self.metadata_by_id().remove(id);
        self.loaded().retain(|loaded| loaded.id != id);
        Ok(())
    }

    /// The file of an id, which must be in the list.
    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(id).with_extension(EXTENSION)
    }

    /// Puts a classifier at the end of the list of those in memory, and drops the least recently used one if there are
    /// too many.
    fn keep_loaded(&self, new: LoadedClassifier) {
        let mut loaded = self.loaded();
        loaded.retain(|entry| entry.id != new.id);
        if loaded.len() >= MAX_LOADED {
            loaded.remove(0);
        }
        loaded.push(new);
    }

    fn metadata_by_id(&self) -> MutexGuard<'_, BTreeMap<String, ClassifierMetadata>> {
        lock(&self.metadata_by_id)
    }

    fn loaded(&self) -> MutexGuard<'_, Vec<LoadedClassifier>> {
        lock(&self.loaded)
    }
}

/// Locks a mutex, also if another thread has panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why the file of a classifier cannot be read.
fn read_problem(id: &str, error: std::io::Error) -> Problem {
    match error.kind() {
        std::io::ErrorKind::NotFound => no_such_classifier(id),
        _ => Problem::failed("reading a classifier", error),
    }
}

/// The error for an unknown classifier.
pub fn no_such_classifier(id: &str) -> Problem {
    let short: String = id.chars().take(ID_LEN).collect();
    Problem::unknown(format!("there is no classifier '{short}'"))
        .hint("GET /api/v1/classifiers lists all of them")
}

/// The id of a classifier with these bytes.
fn content_id(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..ID_LEN].to_owned()
}

/// The id in the name of a file, if the name has the form of a stored classifier.
fn parse_id(path: &Path) -> Option<String> {
    let name = path.file_stem()?.to_str()?;
    let is_ours = name.len() == ID_LEN && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_ours && path.extension()? == EXTENSION).then(|| name.to_owned())
}

/// Whether a file is a temporary one (of `write_atomically`) that no process writes to any more.
fn is_abandoned(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let age = || fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?.elapsed().ok();
    name.starts_with(".trueshot-") && name.ends_with(".part") && age().is_some_and(|age| age > ABANDONED_AGE)
}

/// Reads a classifier to describe it, after checking that its contents match its id.
fn read(path: &Path, id: &str) -> Result<ClassifierMetadata, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    if content_id(&bytes) != id {
        return Err("its contents do not match its name".into());
    }
    let length = bytes.len() as u64;
    let predictor = Predictor::read_bytes(bytes, id).map_err(|error| error.to_string())?;
    let created = fs::metadata(path).and_then(|metadata| metadata.modified()).unwrap_or(UNIX_EPOCH);
    Ok(describe(&predictor, id, length, created))
}

fn describe(predictor: &Predictor, id: &str, bytes: u64, created: SystemTime) -> ClassifierMetadata {
    ClassifierMetadata {
        id: id.to_owned(),
        method: predictor.method().to_owned(),
        classes: predictor.classes().to_vec(),
        items: predictor.support().len(),
        numbers: predictor.dim(),
        embedder: predictor.embedder().map(str::to_owned),
        created: created.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        bytes,
    }
}

/// Syncs the folder: a new file survives a power failure only if its folder is on the disk too. Does nothing on systems
/// other than Unix.
fn sync_folder(folder: &Path) {
    if let Ok(folder) = fs::File::open(folder) {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use trueshot::Embeddings;
    use trueshot::method::Registry;

    use super::*;

    fn predictor() -> Predictor {
        let labels = ["a", "a", "b", "b"].map(str::to_owned).to_vec();
        let data = Embeddings::from_rows(vec![1.0, 0.0, 0.9, 0.1, 0.0, 1.0, 0.1, 0.9], 2, labels).unwrap();
        Predictor::fit(data, &Registry::default().parse("protonet").unwrap(), None).unwrap()
    }

    #[test]
    fn a_classifier_is_one_file_named_by_a_hash_of_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let saved = store.save(predictor()).unwrap();
        let files: Vec<PathBuf> = fs::read_dir(folder.path().join("classifiers"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        let classifiers: Vec<&PathBuf> = files.iter().filter(|path| parse_id(path).is_some()).collect();
        let bytes = fs::read(classifiers[0]).unwrap();
        assert_eq!((classifiers.len(), parse_id(classifiers[0])), (1, Some(saved.id.clone())));
        assert_eq!(blake3::hash(&bytes).to_hex()[..32], saved.id);
    }

    #[test]
    fn there_is_a_limit_on_classifiers() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let metadata = describe(&predictor(), "", 0, UNIX_EPOCH);
        store
            .metadata_by_id()
            .extend((0..MAX_CLASSIFIERS).map(|number| (number.to_string(), metadata.clone())));
        assert_eq!(store.save(predictor()).unwrap_err().status(), 409);
        store.metadata_by_id().remove("0");
        let saved = store.save(predictor()).unwrap();
        assert_eq!(
            store.save(predictor()).unwrap(),
            saved,
            "a classifier that is stored already does not count again"
        );
    }
}
