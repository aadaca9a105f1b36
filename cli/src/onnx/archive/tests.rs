use super::*;
use crate::onnx;
use std::io::Write;
use tempfile::TempDir;

const ENDINGS: [&str; 4] = ["tar", "tar.gz", "TGZ", "zip"];

/// An archive with these files, in a separate folder.
fn archive(ending: &str, files: &[(&str, &[u8])]) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("model.{ending}"));
    let bytes = match ending {
        "tar" => tar_of(files),
        "zip" => zip_of(files),
        _ => gzip(&tar_of(files)),
    };
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        builder.append_data(&mut head_of(EntryType::Regular, bytes.len()), path, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

fn head_of(kind: EntryType, len: usize) -> tar::Header {
    let mut head = tar::Header::new_gnu();
    head.set_entry_type(kind);
    head.set_size(len as u64);
    head.set_mode(0o644);
    head
}

/// A tar with one entry, whose path the library would not write.
fn raw_tar(kind: EntryType, path: &[u8], content: &[u8]) -> Vec<u8> {
    let mut head = head_of(kind, content.len());
    head.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path);
    head.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&head, content).unwrap();
    builder.into_inner().unwrap()
}

fn zip_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let entries = files.iter().enumerate().map(|(index, (path, bytes))| ZipFile {
        path,
        bytes,
        is_deflated: index % 2 == 0,
        flags: 0,
        mode: 0o100_644,
        is_wide: index % 3 == 0,
    });
    zip_with(&entries.collect::<Vec<_>>())
}

/// A file of an archive to write.
struct ZipFile<'a> {
    path: &'a str,
    bytes: &'a [u8],
    is_deflated: bool,
    flags: u16,
    mode: u32,
    /// Whether its numbers are in an extra field with 64 bits each.
    is_wide: bool,
}

fn zip_with(files: &[ZipFile<'_>]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut list = Vec::new();
    for file in files {
        let packed = if file.is_deflated { deflate(file.bytes) } else { file.bytes.to_vec() };
        let mut crc = flate2::Crc::new();
        crc.update(file.bytes);
        let start = archive.len() as u64;
        let method = if file.is_deflated { 8_u16 } else { 0 };
        let numbers = [packed.len() as u64, file.bytes.len() as u64];
        let narrow = |number: u64| (if file.is_wide { u32::MAX } else { number as u32 }).to_le_bytes();
        let extra = match file.is_wide {
            true => [
                &[9, 0, 1, 0, 7, 1, 0, 24, 0][..],
                &[numbers[1], numbers[0], start].map(u64::to_le_bytes).concat(),
            ]
            .concat(),
            false => Vec::new(),
        };
        let lengths = [file.path.len() as u16, extra.len() as u16].map(u16::to_le_bytes).concat();
        let common = [
            &[20, 0][..],
            &file.flags.to_le_bytes(),
            &method.to_le_bytes(),
            &[0; 4],
            &crc.sum().to_le_bytes(),
            &numbers.map(narrow).concat(),
            &lengths,
        ]
        .concat();
        archive.extend([b"PK\x03\x04", &common[..], file.path.as_bytes(), &extra, &packed].concat());
        let behind = [&[0; 6][..], &(file.mode << 16).to_le_bytes(), &narrow(start)].concat();
        list.extend([b"PK\x01\x02\x14\x03", &common[..], &behind, file.path.as_bytes(), &extra].concat());
    }
    let count = (files.len() as u16).to_le_bytes();
    let places = [list.len() as u32, archive.len() as u32].map(u32::to_le_bytes).concat();
    let end = [b"PK\x05\x06\0\0\0\0", &count[..], &count, &places, &[4, 0], b"note"].concat();
    [archive, list, end].concat()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The model that is sent for an archive, or the error with its cause.
fn sent(path: &Path) -> Result<Vec<u8>, String> {
    let parts = onnx::open(path).map_err(|error| format!("{error:#}"))?;
    let mut bytes = Vec::new();
    let len = parts.length_bytes();
    parts.reader().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, len);
    Ok(bytes)
}

/// The error for an archive with this content.
fn error(ending: &str, content: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("model.{ending}"));
    std::fs::write(&path, content).unwrap();
    sent(&path).unwrap_err()
}

#[test]
fn archives_are_sent_like_the_folder_that_they_contain() {
    let external = onnx::tests::model_with_weights_in("data/w.bin");
    let weights: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    let long = format!("{}/notes.md", "folder".repeat(30));
    let files =
        [("./model.onnx", &external[..]), ("data/w.bin", &weights), (&long, b"notes"), ("x/y.onnx", b"")];
    let folder = tempfile::tempdir().unwrap();
    for (path, bytes) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let expected = sent(folder.path()).unwrap();
    assert!(expected.len() > weights.len());
    for ending in ENDINGS {
        let (_folder, path) = archive(ending, &files);
        assert!(sent(&path).unwrap() == expected, "{ending}");
        let (_folder, path) = archive(ending, &[("model.onnx", b"no model")]);
        assert_eq!(sent(&path).as_deref(), Ok(&b"no model"[..]), "{ending}");
    }
}

#[test]
fn archive_needs_one_onnx_file_at_its_top() {
    for ending in ENDINGS {
        let (_folder, path) = archive(ending, &[("model/model.onnx", b""), ("w.bin", b"")]);
        let text = sent(&path).unwrap_err();
        assert!(text.contains("has no .onnx file"), "{text}");
        let (_folder, path) = archive(ending, &[("a.onnx", b""), ("b.ONNX", b"")]);
        let text = sent(&path).unwrap_err();
        assert!(text.contains("has 2 .onnx files: a.onnx, b.ONNX"), "{text}");
        let external = onnx::tests::model_with_weights_in("w.bin");
        let (_folder, path) = archive(ending, &[("a.onnx", &external)]);
        let text = sent(&path).unwrap_err();
        assert!(text.contains("cannot read w.bin, which has weight \"w\""), "{text}");
        let external = onnx::tests::model_with_weights_in("../w.bin");
        let (_folder, path) = archive(ending, &[("a.onnx", &external)]);
        let text = sent(&path).unwrap_err();
        assert!(text.contains("outside the model's folder"), "{text}");
    }
}

#[test]
fn paths_outside_the_folder_are_refused() {
    for path in ["../model.onnx", "/model.onnx", "a/../../model.onnx", "."] {
        let expected = format!("{path:?} leads outside the folder");
        let tar = raw_tar(EntryType::Regular, path.as_bytes(), b"");
        for text in [error("tar", &tar), error("tar.gz", &gzip(&tar)), error("zip", &zip_of(&[(path, b"")]))]
        {
            assert!(text.contains(&expected), "{text}");
        }
    }
    let text = error("tar", &raw_tar(EntryType::Regular, b"\xff.onnx", b""));
    assert!(text.contains("not UTF-8"), "{text}");
}

#[test]
fn links_and_devices_are_refused() {
    for kind in [EntryType::Symlink, EntryType::Link] {
        let text = error("tar", &raw_tar(kind, b"w.bin", b""));
        assert!(text.contains("\"w.bin\" is a link"), "{text}");
    }
    for kind in [EntryType::Fifo, EntryType::Char, EntryType::Block] {
        let text = error("tar", &raw_tar(kind, b"w.bin", b""));
        assert!(text.contains("is neither a file nor a folder"), "{text}");
    }
    let file =
        |flags, mode| ZipFile { path: "w.bin", bytes: b"", is_deflated: false, flags, mode, is_wide: false };
    let text = error("zip", &zip_with(&[file(0, 0o120_777)]));
    assert!(text.contains("\"w.bin\" is a link"), "{text}");
    let text = error("zip", &zip_with(&[file(1, 0o100_644)]));
    assert!(text.contains("\"w.bin\" is encrypted"), "{text}");
}

#[test]
fn archives_of_other_programs_are_read() {
    // Written by Python's zipfile to a pipe, with a comment and a folder: lengths follow the files.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("python.zip");
    std::fs::write(&path, include_bytes!("tests/python.zip")).unwrap();
    assert_eq!(sent(&path).unwrap(), b"no model, but a file of an archive\n".repeat(9));
}

#[test]
fn ambiguous_and_unbounded_archives_are_refused() {
    let twice = tar_of(&[("a.onnx", b"1"), ("./a.onnx", b"2")]);
    let text = error("tar", &twice);
    assert!(text.contains("it has \"a.onnx\" twice"), "{text}");
    let names: Vec<String> = (0..=FILES_MAX).map(|index| index.to_string()).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    for text in [error("tar", &tar_of(&files)), error("zip", &zip_of(&files))] {
        assert!(text.contains("it has more than 10000 files"), "{text}");
    }
    let name = raw_tar(EntryType::GNULongName, b"", &vec![b'a'; PATH_BYTES_MAX as usize + 1]);
    assert!(error("tar", &name).contains("a path or attributes of more than 4096 bytes"));
    let attributes = raw_tar(EntryType::XHeader, b"", &vec![b'a'; ATTRIBUTES_BYTES_MAX as usize + 1]);
    assert!(error("tar", &attributes).contains("a path or attributes of more than 65536 bytes"));
    let sparse = raw_tar(EntryType::XHeader, b"", b"22 GNU.sparse.major=1\n");
    assert!(error("tar", &sparse).contains("sparse"));
}

#[test]
fn files_above_the_limit_are_refused() {
    let mut spool = Unpacker {
        spool: BufWriter::new(tempfile::tempfile().unwrap()),
        files: HashMap::new(),
        bytes: UNPACKED_BYTES_MAX - 10,
    };
    spool.add("a", &mut &b"12345"[..]).unwrap();
    spool.add("b", &mut &b"12345"[..]).unwrap();
    assert!(matches!(spool.add("c", &mut &b"1"[..]), Err(ArchiveError::TooLarge)));
}

#[test]
fn damaged_archives_are_refused() {
    let whole = [("model.onnx", &[7_u8; 5_000][..])];
    let short = |bytes: Vec<u8>| bytes[..bytes.len() / 2].to_vec();
    let mut changed = zip_of(&[("w.bin", b""), ("model.onnx", b"stored content")]);
    let at = changed.windows(6).position(|part| part == b"stored").unwrap();
    changed[at] = b'S';
    for (ending, content) in [
        ("tar", short(tar_of(&whole))),
        ("tar.gz", short(gzip(&tar_of(&whole)))),
        ("zip", short(zip_of(&whole))),
        ("zip", changed),
        ("zip", b"PK\x05\x06".to_vec()),
        ("zip", tar_of(&whole)),
        ("tar.gz", zip_of(&whole)),
    ] {
        let text = error(ending, &content);
        assert!(text.contains("cannot unpack "), "{ending}: {text}");
    }
}
