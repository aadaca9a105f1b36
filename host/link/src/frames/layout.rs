//! The fields of each message, in the order of a frame. A change of this file needs a new
//! [`PROTOCOL`](crate::PROTOCOL).

use super::primitives::Wire;
use super::{FrameError, FrameReader, FrameWriter};
use crate::{AnnouncedInvocation, AnnouncedModel, DispatcherCommand, Hello, NodeEvent, StagedModel};
use weir_scheduler::{
    Alternative, Arrival, DeviceRule, DeviceSpec, DeviceUse, Estimate, InputsOn, LoadByTier,
    MeasuredTransfer, ModelDemand, Part, PartId, PlannedStep, Rejection, Slo, StorageTier, Why,
};
use weir_types::{Cost, DeviceId, FunctionId, InvocationId, ModelId, NodeId, Platform, Platforms, Version};

/// A struct, whose fields follow each other.
macro_rules! fields {
    ($($name:ident { $($field:ident),+ $(,)? })+) => {$(
        impl Wire for $name {
            fn put(&self, out: &mut FrameWriter<'_>) {
                let Self { $($field),+ } = self;
                $($field.put(out);)+
            }

            fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
                Ok(Self { $($field: Wire::take(from)?),+ })
            }
        }
    )+};
}

/// An enum: the number of the variant, followed by its fields.
macro_rules! variants {
    ($($name:ident as $what:literal {
        $($tag:literal => $variant:ident $(($value:ident))? $({ $($field:ident),+ })?),+ $(,)?
    })+) => {$(
        impl Wire for $name {
            fn put(&self, out: &mut FrameWriter<'_>) {
                match self {
                    $(Self::$variant $(($value))? $({ $($field),+ })? => {
                        out.byte($tag);
                        $($value.put(out);)?
                        $($($field.put(out);)+)?
                    })+
                }
            }

            fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
                Ok(match from.byte()? {
                    $($tag => {
                        $(let $value = Wire::take(from)?;)?
                        $($(let $field = Wire::take(from)?;)+)?
                        Self::$variant $(($value))? $({ $($field),+ })?
                    })+
                    value => return Err(FrameError::Unknown { what: $what, value: value.into() }),
                })
            }
        }
    )+};
}

/// A newtype of a number.
macro_rules! numbers {
    ($($name:ident)+) => {$(
        impl Wire for $name {
            fn put(&self, out: &mut FrameWriter<'_>) {
                self.0.put(out);
            }

            fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
                Wire::take(from).map(Self)
            }
        }
    )+};
}

numbers! { InvocationId NodeId PartId Version }

fields! {
    Alternative { device, estimate }
    AnnouncedInvocation { arrival, deadline_in_ns, device, origin }
    AnnouncedModel { device, model, bytes, parts }
    Arrival {
        invocation, function, models, deadline_at_ns, priority, batch, run_time_ns, run_times_ns, slo,
        inputs, batch_items_max, is_splittable, steps,
    }
    DeviceId { node, ordinal }
    DeviceSpec { kind, platform, capacity_bytes, slots, invocations_max, rule }
    DeviceUse { device_time_ns, run_time_ns, batch_items, wait_ns }
    Estimate {
        wait_ns, load_time_ns, move_time_ns, run_time_ns, off_device_ns, load_by_tier, missing_bytes, cost,
    }
    FunctionId { tenant, name, version }
    Hello { node, address, devices, resident, origin, staged, down, running, has_more }
    InputsOn { node, bytes }
    LoadByTier { sibling_ns, memory_ns, disk_ns, object_store_ns }
    MeasuredTransfer { from, bytes, time_ns }
    ModelDemand { model, bytes, load_time_ns, runs_on, parts }
    ModelId { tenant, name, version }
    Part { id, bytes }
    PlannedStep { invocation, function, models, after, batch, run_times_ns }
    Slo { due_at_ns, cost_max }
    StagedModel { model, bytes, moved }
    Why { estimate, alternatives, queued_ns }
}

variants! {
    DeviceRule as "device rule" { 0 => CountedInvocations, 1 => CommittedWork }
    DispatcherCommand as "command" {
        0 => Start { invocation, node, device, address, evict, why },
        1 => Reject { invocation, why, estimate, alternatives },
        2 => MayEvict { device, evict },
        3 => Abandoned { invocation },
        4 => Beat,
        5 => Load { device, model, evict },
        6 => Release { device, model },
        7 => Reserved { invocation },
    }
    NodeEvent as "event" {
        0 => Hello(hello),
        1 => Running { running, is_last },
        2 => Arrived { arrival, deadline_in_ns, due_in_ns },
        3 => Started { invocation },
        4 => Finished { invocation, used },
        5 => Failed { invocation, used },
        6 => Cancelled { invocation, used },
        7 => Answered { invocation },
        8 => Abandoned { invocation },
        9 => Loaded { device, model, bytes, load_time_ns, parts },
        10 => Evicted { device, model },
        11 => Staged { models },
        12 => DeviceDown { device },
        13 => DeviceUp { device },
        14 => DeviceResized { device, capacity_bytes },
        15 => Beat,
        16 => Leaving,
        17 => LoadFailed { device, model },
        18 => Released { device, model },
    }
    Platform as "platform" { 0 => Cpu, 1 => Cuda, 2 => Fake }
    Rejection as "rejection" {
        0 => QueueFull, 1 => NoCapacity, 2 => Deadline, 3 => Slo, 4 => NodeLost, 5 => NoDevice
    }
    StorageTier as "storage tier" { 0 => Sibling, 1 => Memory, 2 => Disk, 3 => ObjectStore }
}

impl Wire for Cost {
    fn put(&self, out: &mut FrameWriter<'_>) {
        out.number(self.nanos());
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        from.number().map(Self::from_nanos)
    }
}

/// A bit for each platform, at its place in [`Platform::ALL`].
impl Wire for Platforms {
    fn put(&self, out: &mut FrameWriter<'_>) {
        let bits = (0..).zip(Platform::ALL).filter(|(_, platform)| self.contains(*platform));
        out.byte(bits.map(|(place, _)| 1_u8 << place).sum());
    }

    fn take(from: &mut FrameReader<'_>) -> Result<Self, FrameError> {
        let bits = from.byte()?;
        if bits >> Platform::ALL.len() != 0 {
            return Err(FrameError::Unknown { what: "set of platforms", value: bits.into() });
        }
        Ok((0..).zip(Platform::ALL).filter(|(place, _)| bits >> place & 1 == 1).map(|(_, it)| it).collect())
    }
}
