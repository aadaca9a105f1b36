//! Signature of a model, as reported by ONNX Runtime.

use crate::value;
use ort::session::Session;
use ort::sys::ONNXTensorElementDataType;
use ort::value::{Outlet, ValueType};
use weir_inference::UploadRefusal;
use weir_types::{Port, Signature};

/// Reads the signature of a session. Inputs with a default value are not included.
pub(crate) fn signature(session: &Session) -> Result<Signature, UploadRefusal> {
    let ports = |outlets: &[Outlet]| outlets.iter().map(port).collect::<Result<Vec<_>, _>>();
    Ok(Signature { inputs: ports(session.inputs())?, outputs: ports(session.outputs())? })
}

/// Declared size of each dimension; negative if variable.
pub(crate) fn dimensions(outlet: &Outlet) -> &[i64] {
    outlet.dtype().tensor_shape().map_or(&[], |shape| shape)
}

fn port(outlet: &Outlet) -> Result<Port, UploadRefusal> {
    let unsupported = |what: String| UploadRefusal::UnsupportedPort { port: outlet.name().to_owned(), what };
    let ValueType::Tensor { ty, .. } = outlet.dtype() else {
        return Err(unsupported(outlet.dtype().to_string()));
    };
    let datatype = value::element_type(ONNXTensorElementDataType::from(*ty));
    let datatype = datatype.ok_or_else(|| unsupported(format!("a tensor of {ty}")))?;
    let size = |size: &i64| -> Result<Option<u32>, UploadRefusal> {
        let huge = || UploadRefusal::HugeDimension {
            tensor: outlet.name().to_owned(),
            dimensions: dimensions(outlet).to_vec(),
        };
        if *size < 0 { Ok(None) } else { u32::try_from(*size).map(Some).map_err(|_| huge()) }
    };
    let shape = dimensions(outlet).iter().map(size).collect::<Result<_, _>>()?;
    Ok(Port { name: outlet.name().to_owned(), datatype, shape })
}
