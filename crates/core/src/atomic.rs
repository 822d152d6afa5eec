//! Files appear whole or not at all: written to a sibling, synced, renamed into place.
//!
//! Devices and pipes (`/dev/stdout`) cannot appear, so they are written to as they are; and a link stays a
//! link, it is the file behind it that is replaced.

use std::io::{BufWriter, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Writes a file through `fill`. If anything fails, a full disk included, the old file stays as it was and
/// nothing new is left behind.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let attempt = || -> std::io::Result<()> {
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            let mut device = BufWriter::new(std::fs::OpenOptions::new().write(true).open(path)?);
            fill(&mut device)?;
            return device.flush();
        }
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let file = sibling(path)?;
        let mut buffered = BufWriter::with_capacity(1 << 16, file);
        fill(&mut buffered)?;
        let file = buffered.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    attempt().map_err(|source| Error::Write { path: path.into(), source })
}

/// Whether a file could be written there, found out before the work rather than after it.
pub fn check_writable(path: &Path) -> Result<()> {
    let found = std::fs::metadata(path);
    let attempt = match found {
        Ok(found) if found.is_dir() => Err(std::io::Error::other("it is a folder")),
        Ok(found) if !found.is_file() => Ok(()),
        _ => sibling(path).map(drop),
    };
    attempt.map_err(|source| Error::Write { path: path.into(), source })
}

/// A new file beside a path, which disappears unless it is renamed.
pub(crate) fn sibling(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(std::io::Error::other(format!("{} is no folder", folder.display())));
    }
    let mut sibling = tempfile::Builder::new();
    sibling.prefix(".trueshot-").suffix(".part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // tempfile's own default is 0600: right for secrets, a surprise for results. The umask still applies.
        sibling.permissions(std::fs::Permissions::from_mode(0o666));
    }
    sibling.tempfile_in(folder)
}
