//! The master keys of a node, and the place that it gets them from.

use super::envelope::MasterKey;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use weir_sandbox::SecretsConfig;
use weir_storage::{PrivateFileError, read_private_file};
use zeroize::Zeroizing;

/// Name of the key file in the data folder of a node without a cluster.
pub const KEY_FILE: &str = "secrets.key";
/// Most master keys of a node: one that encrypts, and earlier ones until all is rotated.
const KEYS_MAX: usize = 16;
/// Longest time that the command for keys may take.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest output of the command for keys, in bytes.
const COMMAND_BYTES_MAX: u64 = 64 << 10;

/// Unusable master keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// The file cannot be used.
    #[error("cannot use the key file of secrets {}: {why}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The command failed.
    #[error("the command for the keys of secrets failed (key_command of [node.sandbox.secrets]): {0}")]
    Command(String),
    /// A thread of the node failed.
    #[error("reading the keys of secrets failed: {0}")]
    Thread(String),
    /// The settings contradict each other.
    #[error("[node.sandbox.secrets] has key_file and key_command: keep one of them")]
    Both,
    /// The settings give no keys to a node of a cluster.
    #[error(
        "the nodes of a cluster store secrets only with a common key: make one with `weir secrets new-key FILE`, copy the file to all nodes, and name it in each weir.toml as key_file of [node.sandbox.secrets]"
    )]
    Unset,
}

/// Master keys. The first one encrypts, and all decrypt.
#[derive(Debug, Default)]
pub(super) struct Keyring(Vec<MasterKey>);

impl Keyring {
    /// Reads the lines of a key file. Empty lines and lines that start with `#` are left out.
    ///
    /// # Errors
    /// A text that completes "the file ...".
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let keys = lines.map(|(at, line)| {
            let number = at + 1;
            MasterKey::parse(line).ok_or_else(|| format!("line {number} is not a key: 32 bytes in base64"))
        });
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        match keys.len() {
            0 => Err("it has no key".to_owned()),
            1..=KEYS_MAX => Ok(Self(keys)),
            len => Err(format!("it has {len} keys, and at most {KEYS_MAX} are read")),
        }
    }

    /// The key that encrypts; `None` if there are no keys.
    pub(super) fn first(&self) -> Option<&MasterKey> {
        self.0.first()
    }

    /// The ids of all keys, for messages.
    pub(super) fn ids(&self) -> String {
        let ids: Vec<_> = self.0.iter().map(MasterKey::id).collect();
        if ids.is_empty() { "none".to_owned() } else { ids.join(", ") }
    }

    /// The key with this id.
    pub(super) fn get(&self, id: &str) -> Option<&MasterKey> {
        self.0.iter().find(|key| key.id() == id)
    }
}

/// The place that a node gets its master keys from.
#[derive(Debug, Clone)]
pub(super) enum KeySource {
    /// A file that the operator makes.
    File(PathBuf),
    /// A program with its arguments.
    Command(Vec<String>),
    /// A file that the node makes when it needs a key.
    Made(PathBuf),
    /// No keys: a node of a cluster without settings.
    Unset,
}

impl KeySource {
    /// The source that the settings name. `alone_in`: the data folder of a node without a cluster.
    pub(super) fn new(config: &SecretsConfig, alone_in: Option<&Path>) -> Result<Self, KeyringError> {
        match (&config.key_file, &config.key_command[..], alone_in) {
            (Some(_), [_, ..], _) => Err(KeyringError::Both),
            (Some(file), [], _) => Ok(Self::File(file.clone())),
            (None, [_, ..], _) => Ok(Self::Command(config.key_command.clone())),
            (None, [], Some(folder)) => Ok(Self::Made(folder.join(KEY_FILE))),
            (None, [], None) => Ok(Self::Unset),
        }
    }

    /// Reads the keys. Without a file that the node makes, and without settings, there are none.
    pub(super) async fn read(&self) -> Result<Keyring, KeyringError> {
        match self {
            Self::Unset => Ok(Keyring::default()),
            Self::Command(command) => run(command).await,
            Self::File(path) | Self::Made(path) => {
                let may_be_missing = matches!(self, Self::Made(_));
                let path = path.clone();
                in_background(move || match read(&path) {
                    Err(PrivateFileError::Io(error))
                        if may_be_missing && error.kind() == io::ErrorKind::NotFound =>
                    {
                        Ok(Keyring::default())
                    }
                    text => parse(&path, text),
                })
                .await
            }
        }
    }

    /// Makes the key file, unless it exists, and reads it.
    ///
    /// # Errors
    /// If the node may not make keys, or cannot write the file.
    pub(super) async fn make(&self) -> Result<Keyring, KeyringError> {
        match self {
            Self::Made(path) => {
                let path = path.clone();
                in_background(move || {
                    match make_key_file(&path) {
                        Ok(()) => tracing::info!(file = %path.display(), "made the key of secrets"),
                        Err(KeyringError::File { .. }) if path.exists() => {}
                        Err(error) => return Err(error),
                    }
                    parse(&path, read(&path))
                })
                .await
            }
            Self::Unset => Err(KeyringError::Unset),
            Self::File(_) | Self::Command(_) => self.read().await,
        }
    }
}

/// Makes a file with a new master key, for its owner only. Blocks.
///
/// # Errors
/// If the file exists, or cannot be written.
pub fn make_key_file(path: &Path) -> Result<(), KeyringError> {
    write_new_key(path, "", false)
}

/// Adds a new master key to a file, as the first line: it encrypts from the next start of the node.
/// Blocks.
///
/// # Errors
/// If the file has no keys, or cannot be read and written.
pub fn add_key(path: &Path) -> Result<(), KeyringError> {
    let text = read(path);
    let earlier = text.as_ref().map(|text| Zeroizing::new(text.to_string())).unwrap_or_default();
    parse(path, text)?;
    write_new_key(path, &earlier, true)
}

/// Writes a new key and the lines of `earlier` keys. Complete before the file has its name.
fn write_new_key(path: &Path, earlier: &str, may_replace: bool) -> Result<(), KeyringError> {
    let unusable = |why: String| KeyringError::File { path: path.to_owned(), why };
    let line = MasterKey::generate().map_err(|error| unusable(error.to_string()))?;
    let write = || -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        // Temporary files are for their owner only.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(line.as_bytes())?;
        file.write_all(b"\n")?;
        file.write_all(earlier.as_bytes())?;
        file.as_file().sync_all()?;
        match may_replace {
            true => file.persist(path)?,
            false => file.persist_noclobber(path)?,
        };
        File::open(folder)?.sync_all()
    };
    write().map_err(|error| unusable(error.to_string()))
}

async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KeyringError> + Send + 'static,
) -> Result<T, KeyringError> {
    let failed = |panic: tokio::task::JoinError| KeyringError::Thread(panic.to_string());
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

fn read(path: &Path) -> Result<Zeroizing<String>, PrivateFileError> {
    read_private_file(path).map(Zeroizing::new)
}

fn parse(path: &Path, text: Result<Zeroizing<String>, PrivateFileError>) -> Result<Keyring, KeyringError> {
    let unusable = |why: String| KeyringError::File { path: path.to_owned(), why };
    let text = text.map_err(|error| match &error {
        PrivateFileError::Io(missing) if missing.kind() == io::ErrorKind::NotFound => {
            unusable(format!("{error}; `weir secrets new-key {}` makes one", path.display()))
        }
        _ => unusable(error.to_string()),
    })?;
    Keyring::parse(&text).map_err(unusable)
}

/// Runs the command for keys.
async fn run(command: &[String]) -> Result<Keyring, KeyringError> {
    let failed = |why: String| KeyringError::Command(why);
    let Some((program, arguments)) = command.split_first() else {
        return Err(failed("it is empty".to_owned()));
    };
    let running = async {
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child =
            command.spawn().map_err(|error| failed(format!("cannot start {program}: {error}")))?;
        let mut text = Zeroizing::new(String::new());
        if let Some(output) = child.stdout.take() {
            let read = output.take(COMMAND_BYTES_MAX).read_to_string(&mut text).await;
            read.map_err(|error| failed(format!("cannot read its output: {error}")))?;
        }
        let status = child.wait().await.map_err(|error| failed(error.to_string()))?;
        if !status.success() {
            return Err(failed(format!("{program} ended with {status}")));
        }
        Keyring::parse(&text).map_err(|why| failed(format!("its output: {why}")))
    };
    let ended = tokio::time::timeout(COMMAND_TIME_MAX, running).await;
    ended.unwrap_or_else(|_| Err(failed(format!("it takes longer than {} s", COMMAND_TIME_MAX.as_secs()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn key_file_is_made_once_and_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let source = KeySource::new(&SecretsConfig::default(), Some(folder.path())).unwrap();
        assert!(source.read().await.unwrap().first().is_none(), "nothing needs a key yet");
        let made = source.make().await.unwrap();
        let path = folder.path().join(KEY_FILE);
        assert_eq!(mode(&path), 0o600);
        let again = source.make().await.unwrap();
        assert_eq!(made.first().unwrap().id(), again.first().unwrap().id());
        assert!(make_key_file(&path).is_err(), "an existing key was overwritten");
        add_key(&path).unwrap();
        let both = source.read().await.unwrap();
        let old = made.first().unwrap().id();
        assert!(both.first().unwrap().id() != old && both.get(old).is_some());
        assert_eq!(mode(&path), 0o600);
        assert!(add_key(&folder.path().join("missing")).is_err());
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let error = source.read().await.unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[tokio::test]
    async fn cluster_needs_a_key_file_that_exists() {
        let unset = KeySource::new(&SecretsConfig::default(), None).unwrap();
        assert!(unset.read().await.unwrap().first().is_none());
        let error = unset.make().await.unwrap_err().to_string();
        assert!(error.contains("weir secrets new-key FILE"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k");
        let config = SecretsConfig { key_file: Some(path.clone()), ..SecretsConfig::default() };
        let source = KeySource::new(&config, None).unwrap();
        let error = source.read().await.unwrap_err().to_string();
        assert!(error.contains(&format!("weir secrets new-key {}", path.display())), "{error}");
        make_key_file(&path).unwrap();
        assert!(source.read().await.unwrap().first().is_some());
    }

    #[tokio::test]
    async fn command_prints_the_keys() {
        let key = MasterKey::generate().unwrap();
        let source = |command: &[&str]| {
            let key_command = command.iter().map(|&part| part.to_owned()).collect();
            KeySource::new(&SecretsConfig { key_command, key_file: None }, None).unwrap()
        };
        let keys = source(&["printf", "# key\\n%s\\n", &key]).read().await.unwrap();
        assert_eq!(keys.first().unwrap().id(), MasterKey::parse(&key).unwrap().id());
        for (command, expected) in [
            (&["false"][..], "ended with"),
            (&["/missing/program"][..], "cannot start"),
            (&["echo", "no key"][..], "line 1 is not a key"),
        ] {
            let error = source(command).read().await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let both = SecretsConfig { key_file: Some("f".into()), key_command: vec!["c".to_owned()] };
        assert!(matches!(KeySource::new(&both, None), Err(KeyringError::Both)));
    }

    #[test]
    fn first_key_encrypts_and_unusable_lines_are_named() {
        let [first, second] = [(), ()].map(|()| MasterKey::generate().unwrap());
        let keys = Keyring::parse(&format!("# comment\n\n{}\n{}\n", *first, *second)).unwrap();
        let id = |line: &str| MasterKey::parse(line).unwrap().id().to_owned();
        assert_eq!(keys.first().unwrap().id(), id(&first));
        assert!(keys.get(&id(&second)).is_some() && keys.get("other").is_none());
        assert_eq!(Keyring::parse("# nothing\n").unwrap_err(), "it has no key");
        let error = Keyring::parse(&format!("{}\nx\n", *first)).unwrap_err();
        assert!(error.contains("line 2"), "{error}");
        assert!(Keyring::parse(&format!("{}\n", *first).repeat(17)).unwrap_err().contains("at most 16"));
    }
}
