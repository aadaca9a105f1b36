//! Folder of a certificate authority.

use super::super::enrolment::PublicKey;
use crate::error::Problem;
use anyhow::{Context as _, Error, Result};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_types::Name;

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Validity of an authority.
const AUTHORITY: Duration = DAY.saturating_mul(3_650);
/// Validity that lists of revoked certificates claim. Nodes use a list until they get another.
const LIST: Duration = DAY.saturating_mul(3_650);
/// Clocks of nodes may be late by this much.
const CLOCKS: Duration = Duration::from_secs(3_600);

/// A certificate authority in a folder.
#[derive(Debug, Clone)]
pub(super) struct Store {
    folder: PathBuf,
}

/// An authority that no other process changes meanwhile.
pub(super) struct LockedStore<'a> {
    store: &'a Store,
    _lock: File,
}

/// Names of a new certificate, and the days until it expires.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) name: &'a Name,
    pub(super) hosts: &'a [String],
    pub(super) days: u32,
}

impl Store {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Folder of the authority.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of the revocation list.
    pub(super) fn crl(&self) -> PathBuf {
        self.folder.join("crl.pem")
    }

    /// Path of the authority's certificate.
    pub(super) fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Path of the list of revoked certificates: a serial number and a time in seconds since 1970 per
    /// line.
    fn revoked_list(&self) -> PathBuf {
        self.folder.join("revoked")
    }

    fn ca_key(&self) -> PathBuf {
        self.folder.join("ca-key.pem")
    }

    /// Creates the authority, and returns its files.
    pub(super) fn create(&self) -> Result<Vec<PathBuf>> {
        if self.ca_key().exists() {
            let message = format!("{} has an authority already", self.folder.display());
            return Err(Problem::new(message).hint("--folder picks another folder").into());
        }
        create_folder(&self.folder)?;
        let issuer = CertifiedIssuer::self_signed(authority()?, KeyPair::generate()?)?;
        write(&self.ca_key(), 0o600, &issuer.key().serialize_pem())?;
        write(&self.ca(), 0o644, &issuer.pem())?;
        write(&self.revoked_list(), 0o644, "")?;
        self.write_crl(&issuer)?;
        Ok(vec![self.ca(), self.ca_key(), self.crl()])
    }

    /// Waits until no other process changes the authority. Blocks.
    pub(super) fn lock(&self) -> Result<LockedStore<'_>> {
        let path = self.folder.join("lock");
        // Its error is better than that of a lock in a folder without an authority.
        self.issuer()?;
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.and_then(|lock| lock.lock().map(|()| lock));
        let lock = lock.with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(LockedStore { store: self, _lock: lock })
    }

    /// Issues a certificate for a server of the authority, valid for a day, that nodes do not accept
    /// as one of a node.
    pub(super) fn server_certificate(
        &self,
        hosts: &[String],
    ) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
        let key = KeyPair::generate()?;
        let mut params = leaf(hosts, 1)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer()?)?;
        Ok((certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).map_err(Error::msg)?))
    }

    /// The node to which the authority has issued this certificate as its last or second to last.
    pub(super) fn node_of(&self, certificate: &CertificateDer<'_>) -> Result<Option<Name>> {
        let Ok(nodes) = fs::read_dir(self.folder.join("nodes")) else { return Ok(None) };
        for entry in nodes {
            let Ok(name) = entry?.file_name().to_string_lossy().parse::<Name>() else { continue };
            let files = [self.certificate(&name), self.earlier_certificate(&name)];
            let mut issued = files.iter().filter_map(|file| CertificateDer::from_pem_file(file).ok());
            if issued.any(|issued| issued == *certificate) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Path of the serial numbers of a node's certificates, in hexadecimal, one per line.
    fn serials(&self, name: &Name) -> PathBuf {
        self.node(name).join("serial")
    }

    /// Path of the host names of a node's certificate, one per line.
    fn hosts(&self, name: &Name) -> PathBuf {
        self.node(name).join("hosts")
    }

    fn certificate(&self, name: &Name) -> PathBuf {
        self.node(name).join("cert.pem")
    }

    /// Path of the certificate before a renewal, which the node may still use.
    fn earlier_certificate(&self, name: &Name) -> PathBuf {
        self.node(name).join("earlier-cert.pem")
    }

    fn node(&self, name: &Name) -> PathBuf {
        self.folder.join("nodes").join(name.as_str())
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>> {
        let path = self.ca_key();
        let key = fs::read_to_string(&path).map_err(|error| {
            Problem::new(format!("cannot read {}", path.display()))
                .because(error)
                .hint("`weir cluster ca create` creates an authority; --folder says where it is")
        })?;
        Ok(Issuer::new(authority()?, KeyPair::from_pem(&key)?))
    }

    /// The revoked certificates.
    fn revoked(&self) -> Result<Vec<RevokedCertParams>> {
        let path = self.revoked_list();
        let entry = |line: &str| {
            let (serial, time_s) = line.split_once(' ').context("not SERIAL TIME")?;
            let time = UNIX_EPOCH.checked_add(Duration::from_secs(time_s.parse()?)).context("not a time")?;
            anyhow::Ok(RevokedCertParams {
                serial_number: SerialNumber::from(decode(serial)?),
                revocation_time: time.into(),
                reason_code: None,
                invalidity_date: None,
            })
        };
        let list = read(&path)?;
        list.lines()
            .map(entry)
            .collect::<Result<_>>()
            .with_context(|| format!("{} is damaged", path.display()))
    }

    fn write_crl(&self, issuer: &Issuer<'_, KeyPair>) -> Result<()> {
        let now = SystemTime::now();
        // Increases with each list.
        let number = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let list = CertificateRevocationListParams {
            this_update: (now - CLOCKS).into(),
            next_update: (now + LIST).into(),
            crl_number: SerialNumber::from(u64::try_from(number).unwrap_or(u64::MAX)),
            issuing_distribution_point: None,
            revoked_certs: self.revoked()?,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        write(&self.crl(), 0o644, &list.signed_by(issuer)?.pem()?)
    }
}

impl LockedStore<'_> {
    /// Creates a key and issues a certificate for it; returns the files, and the serial numbers of
    /// earlier certificates of the name, which are revoked.
    pub(super) fn issue(&self, subject: Subject<'_>) -> Result<(Vec<PathBuf>, Vec<String>)> {
        let key = KeyPair::generate()?;
        let (certificate, serial) = self.sign(subject, &key)?;
        let revoked = self.revoke(subject.name)?;
        self.forget_earlier(subject.name)?;
        let key_file = self.store.node(subject.name).join("key.pem");
        self.keep(subject, &certificate, &serial)?;
        write(&key_file, 0o600, &key.serialize_pem())?;
        Ok((vec![self.store.certificate(subject.name), key_file], revoked))
    }

    /// Issues a certificate for the key of a node, as PEM, unless the name has one that is valid.
    pub(super) fn enrol(&self, subject: Subject<'_>, key: &PublicKey) -> Result<String> {
        let revoked = read(&self.store.revoked_list())?;
        if self.serials(subject.name)?.iter().any(|serial| !is_revoked(&revoked, serial)) {
            let Subject { name, .. } = subject;
            let hint =
                format!("if this is the same machine, revoke it first: `weir cluster ca revoke {name}`");
            return Err(Problem::new(format!("another node has the name {name}")).hint(hint).into());
        }
        let (certificate, serial) = self.sign(subject, key)?;
        self.forget_earlier(subject.name)?;
        self.keep(subject, &certificate, &serial)?;
        Ok(certificate)
    }

    /// Issues another certificate to a node for its present hosts, as PEM. The earlier one stays
    /// valid until it expires.
    pub(super) fn renew(&self, name: &Name, days: u32, key: &PublicKey) -> Result<String> {
        let hosts = read(&self.store.hosts(name)).map_err(|error| {
            Problem::new(format!("the hosts of {name} are not known"))
                .because(error)
                .hint(format!("issue its certificate anew: `weir cluster ca issue {name} --host HOST`"))
        })?;
        let hosts: Vec<String> = hosts.lines().map(str::to_owned).collect();
        let subject = Subject { name, hosts: &hosts, days };
        let (certificate, serial) = self.sign(subject, key)?;
        fs::rename(self.store.certificate(name), self.store.earlier_certificate(name))
            .with_context(|| format!("cannot keep the earlier certificate of {name}"))?;
        self.keep(subject, &certificate, &serial)?;
        Ok(certificate)
    }

    /// Revokes the certificates of the node `name`, and returns their serial numbers.
    pub(super) fn revoke(&self, name: &Name) -> Result<Vec<String>> {
        let serials = self.serials(name)?;
        if serials.is_empty() {
            return Ok(serials);
        }
        let issuer = self.store.issuer()?;
        let mut list = read(&self.store.revoked_list())?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for serial in &serials {
            if !is_revoked(&list, serial) {
                list.push_str(&format!("{serial} {}\n", now.as_secs()));
            }
        }
        write(&self.store.revoked_list(), 0o644, &list)?;
        self.store.write_crl(&issuer)?;
        Ok(serials)
    }

    /// Signs a certificate. Returns it as PEM, with its serial number.
    fn sign(&self, subject: Subject<'_>, key: &impl PublicKeyData) -> Result<(String, String)> {
        let mut params = leaf(subject.hosts, subject.days)?;
        params.distinguished_name.push(DnType::CommonName, subject.name.as_str());
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let serial = random_serial();
        params.serial_number = Some(SerialNumber::from(decode(&serial)?));
        Ok((params.signed_by(key, &self.store.issuer()?)?.pem(), serial))
    }

    /// Stores a certificate with its serial number, by which it can be revoked, and its hosts, for
    /// which it can be renewed.
    fn keep(&self, subject: Subject<'_>, certificate: &str, serial: &str) -> Result<()> {
        let Subject { name, hosts, .. } = subject;
        create_folder(&self.store.node(name))?;
        let mut serials = self.serials(name)?;
        serials.push(serial.to_owned());
        // First, so that no certificate exists that cannot be revoked.
        write(&self.store.serials(name), 0o644, &lines(&serials))?;
        write(&self.store.hosts(name), 0o644, &lines(hosts))?;
        write(&self.store.certificate(name), 0o644, certificate)
    }

    /// Removes the certificate before a renewal, which is revoked.
    fn forget_earlier(&self, name: &Name) -> Result<()> {
        let path = self.store.earlier_certificate(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn serials(&self, name: &Name) -> Result<Vec<String>> {
        let path = self.store.serials(name);
        if !path.exists() {
            return Ok(Vec::new());
        }
        Ok(read(&path)?.lines().map(str::to_owned).collect())
    }
}

fn lines(texts: &[String]) -> String {
    texts.iter().map(|text| format!("{text}\n")).collect()
}

/// Whether a serial number is in a list of revoked certificates.
fn is_revoked(list: &str, serial: &str) -> bool {
    list.lines().any(|line| line.split(' ').next() == Some(serial))
}

/// A certificate for hosts without names, usages and serial number.
fn leaf(hosts: &[String], days: u32) -> Result<CertificateParams> {
    let mut params = CertificateParams::new([])?;
    params.subject_alt_names = hosts.iter().map(|host| alternative_name(host)).collect::<Result<_>>()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    validity(&mut params, DAY.saturating_mul(days));
    Ok(params)
}

/// The authority's certificate without its key.
fn authority() -> Result<CertificateParams> {
    let mut params = CertificateParams::new([])?;
    params.distinguished_name.push(DnType::CommonName, "Weir cluster");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    validity(&mut params, AUTHORITY);
    Ok(params)
}

/// A serial number in hexadecimal: 126 random bits, positive and of constant length.
fn random_serial() -> String {
    let random: u128 = rand::random();
    format!("{:032x}", random >> 2 | 1 << 126)
}

fn decode(serial: &str) -> Result<Vec<u8>> {
    let number =
        u128::from_str_radix(serial, 16).with_context(|| format!("{serial:?} is no serial number"))?;
    Ok(number.to_be_bytes().to_vec())
}

fn validity(params: &mut CertificateParams, time: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - CLOCKS).into();
    params.not_after = (now + time).into();
}

fn alternative_name(host: &str) -> Result<SanType> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let name = Ia5String::try_from(host.to_owned());
    match name {
        Ok(name) if !host.is_empty() && !host.contains([':', '/', ' ']) => Ok(SanType::DnsName(name)),
        _ => Err(Problem::usage(format!("{host:?} is neither a host name nor an IP address"))
            .hint("name the host of the node's --advertise, without a port")
            .into()),
    }
}

fn create_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))
}

pub(in super::super) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Replaces a file by a rename, so that nodes never read a part of it.
pub(in super::super) fn write(path: &Path, mode: u32, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    let failed = || format!("cannot write {}", path.display());
    // A leftover of an interrupted command would keep its mode.
    let _ = fs::remove_file(&new);
    let mut options = File::options();
    let mut file = options.create_new(true).write(true).mode(mode).open(&new).with_context(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(failed)?;
    fs::rename(&new, path).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revoked(store: &Store) -> Vec<Vec<u8>> {
        store.revoked().unwrap().iter().map(|entry| entry.serial_number.to_bytes()).collect()
    }

    fn subject<'a>(name: &'a Name, hosts: &'a [String]) -> Subject<'a> {
        Subject { name, hosts, days: 1 }
    }

    fn key() -> PublicKey {
        PublicKey::new(KeyPair::generate().unwrap().der_bytes()).unwrap()
    }

    #[test]
    fn issuing_again_and_revoking_extend_the_list() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let name: Name = "node-1".parse().unwrap();
        let hosts = ["127.0.0.1".to_owned(), "node-1.example".to_owned()];
        assert!(store.lock().is_err(), "there is no authority");
        store.create().unwrap();
        assert!(store.create().is_err(), "the authority would be lost");
        assert!(revoked(&store).is_empty());
        let store_lock = store.lock().unwrap();
        assert!(store_lock.issue(subject(&name, &hosts)).unwrap().1.is_empty());
        assert_eq!(store_lock.issue(subject(&name, &hosts)).unwrap().1.len(), 1);
        assert_eq!(revoked(&store).len(), 1, "the earlier certificate");
        for _ in 0..2 {
            assert_eq!(store_lock.revoke(&name).unwrap().len(), 2);
            assert_eq!(revoked(&store).len(), 2);
        }
        assert!(store_lock.issue(subject(&name, &["node:1".into()])).is_err());
        assert!(store_lock.revoke(&"other".parse().unwrap()).unwrap().is_empty());
    }

    #[test]
    fn names_are_taken_until_they_are_revoked_with_all_renewals() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        store.create().unwrap();
        let name: Name = "node-1".parse().unwrap();
        let hosts = ["127.0.0.1".to_owned()];
        let locked = store.lock().unwrap();
        let first = locked.enrol(subject(&name, &hosts), &key()).unwrap();
        assert!(locked.enrol(subject(&name, &hosts), &key()).unwrap_err().to_string().contains("node-1"));
        let second = locked.renew(&name, 1, &key()).unwrap();
        assert_ne!(first, second);
        let owner =
            |pem: &str| store.node_of(&CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
        assert_eq!(owner(&first), Some(name.clone()), "the node may not have stored the second one");
        assert_eq!(owner(&second), Some(name.clone()));
        assert!(revoked(&store).is_empty(), "the first one stays valid");
        assert_eq!(locked.revoke(&name).unwrap().len(), 2);
        assert_eq!(revoked(&store).len(), 2);
        locked.enrol(subject(&name, &hosts), &key()).unwrap();
        assert_eq!(owner(&first), None);
    }
}
