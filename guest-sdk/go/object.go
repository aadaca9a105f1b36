package weir

import "time"

// GetObject gives the tensor that is kept under name, as it was put. The function's manifest says which names it may read:
//
//	[function.objects]
//	read = ["thresholds"]
//	write = ["session-*"]
//
// It fails with [NotFound] where there is none, or it has expired, and with [NotGranted].
func GetObject(name string) (*Tensor, error) {
	return tensor(getObject(name))
}

// PutObject keeps a copy of a tensor under name, in the place of what was there, for so long, counted in whole milliseconds; 0 is for as long
// as the node's settings say. The object is durable when PutObject returns. It fails with [ResourceExhausted] where there is no room for it.
func PutObject(name string, value *Tensor, ttl time.Duration) error {
	if ttl < 0 || ttl > 0 && ttl < time.Millisecond {
		return Errorf(InvalidArgument, "an object is kept for a millisecond at least, and not for %v", ttl)
	}
	return putObject(name, value.on, uint64(ttl.Milliseconds()))
}

// DeleteObject lets nobody find name any more.
func DeleteObject(name string) error { return deleteObject(name) }
