//! Folder of a certificate authority.

use crate::error::Problem;
use anyhow::{Context as _, Result};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    SerialNumber,
};
use std::fs::{self, File};
use std::io::Write as _;
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
pub(super) struct Store<'a> {
    folder: &'a Path,
}

impl<'a> Store<'a> {
    pub(super) fn new(folder: &'a Path) -> Self {
        Self { folder }
    }

    /// Path of the revocation list.
    pub(super) fn crl(&self) -> PathBuf {
        self.folder.join("crl.pem")
    }

    fn ca(&self) -> PathBuf {
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
            return Err(Problem::usage(message).hint("--folder picks another folder").into());
        }
        fs::create_dir_all(self.folder)
            .with_context(|| format!("cannot make the folder {}", self.folder.display()))?;
        let issuer = CertifiedIssuer::self_signed(authority()?, KeyPair::generate()?)?;
        write(&self.ca_key(), 0o600, &issuer.key().serialize_pem())?;
        write(&self.ca(), 0o644, &issuer.pem())?;
        write(&self.revoked_list(), 0o644, "")?;
        self.write_crl(&issuer)?;
        Ok(vec![self.ca(), self.ca_key(), self.crl()])
    }

    /// Issues a certificate to the node `name`; returns its files, and the serial number of the
    /// earlier certificate of the name, which is revoked.
    pub(super) fn issue(
        &self,
        name: &Name,
        hosts: &[String],
        days: u32,
    ) -> Result<(Vec<PathBuf>, Option<String>)> {
        let issuer = self.issuer()?;
        let mut params = CertificateParams::new([])?;
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        params.subject_alt_names = hosts.iter().map(|host| alternative_name(host)).collect::<Result<_>>()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        validity(&mut params, DAY.saturating_mul(days));
        let serial = random_serial();
        params.serial_number = Some(SerialNumber::from(decode(&serial)?));
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        let revoked = self.revoke(name)?;
        let key_file = self.node(name).join("key.pem");
        fs::create_dir_all(self.node(name))
            .with_context(|| format!("cannot make the folder {}", self.node(name).display()))?;
        write(&key_file, 0o600, &key.serialize_pem())?;
        write(&self.certificate(name), 0o644, &certificate.pem())?;
        write(&self.serial(name), 0o644, &serial)?;
        Ok((vec![self.certificate(name), key_file], revoked))
    }

    /// Revokes the certificate of the node `name`, and returns its serial number; `None` if it has
    /// none.
    pub(super) fn revoke(&self, name: &Name) -> Result<Option<String>> {
        let path = self.serial(name);
        if !path.exists() {
            return Ok(None);
        }
        let issuer = self.issuer()?;
        let serial = read(&path)?;
        let mut list = read(&self.revoked_list())?;
        if !list.lines().any(|line| line.split(' ').next() == Some(serial.as_str())) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            list.push_str(&format!("{serial} {}\n", now.as_secs()));
            write(&self.revoked_list(), 0o644, &list)?;
        }
        self.write_crl(&issuer)?;
        Ok(Some(serial))
    }

    /// Path of the serial number of a node's certificate, in hexadecimal.
    fn serial(&self, name: &Name) -> PathBuf {
        self.node(name).join("serial")
    }

    fn certificate(&self, name: &Name) -> PathBuf {
        self.node(name).join("cert.pem")
    }

    fn node(&self, name: &Name) -> PathBuf {
        self.folder.join("nodes").join(name.as_str())
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>> {
        let path = self.ca_key();
        let key = fs::read_to_string(&path).map_err(|error| {
            Problem::usage(format!("cannot read {}", path.display()))
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

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Replaces a file by a rename, so that nodes never read a part of it.
fn write(path: &Path, mode: u32, text: &str) -> Result<()> {
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

    fn serials(store: &Store<'_>) -> Vec<Vec<u8>> {
        store.revoked().unwrap().iter().map(|entry| entry.serial_number.to_bytes()).collect()
    }

    #[test]
    fn issuing_again_and_revoking_extend_the_list() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let name: Name = "node-1".parse().unwrap();
        assert!(store.issue(&name, &["127.0.0.1".into()], 1).is_err(), "there is no authority");
        store.create().unwrap();
        assert!(store.create().is_err(), "the authority would be lost");
        assert!(serials(&store).is_empty());
        let hosts = ["127.0.0.1".to_owned(), "node-1.example".to_owned()];
        assert_eq!(store.issue(&name, &hosts, 1).unwrap().1, None);
        assert!(store.issue(&name, &hosts, 1).unwrap().1.is_some());
        assert_eq!(serials(&store).len(), 1, "the earlier certificate");
        assert!(store.revoke(&name).unwrap().is_some());
        assert!(store.revoke(&name).unwrap().is_some());
        assert_eq!(serials(&store).len(), 2);
        assert!(store.issue(&name, &["node:1".into()], 1).is_err());
        assert_eq!(store.revoke(&"other".parse().unwrap()).unwrap(), None);
    }
}
