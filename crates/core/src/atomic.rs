//! Files appear whole or not at all: written to a sibling, synced, renamed into place.

use std::io::{BufWriter, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Writes a file through `fill`. If anything fails, a full disk included, the old file stays as it was and
/// nothing new is left behind.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let attempt = || -> std::io::Result<()> {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut sibling = tempfile::Builder::new();
        sibling.prefix(".trueshot-").suffix(".part");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // tempfile's own default is 0600: right for secrets, a surprise for results. The umask still applies.
            sibling.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let file = sibling.tempfile_in(folder)?;
        let mut buffered = BufWriter::with_capacity(1 << 16, file);
        fill(&mut buffered)?;
        let file = buffered.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    attempt().map_err(|source| Error::Write { path: path.into(), source })
}
