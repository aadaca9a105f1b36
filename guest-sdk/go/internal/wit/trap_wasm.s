#include "textflag.h"

// func Trap()
TEXT ·Trap(SB), NOSPLIT, $0-0
	UNDEF
	RET
