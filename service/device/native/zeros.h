#pragma once

namespace levserve {

// Finds out whether the system gives fresh pages for those that are given back.
void ProbePages();

}  // namespace levserve
