// SPDX-License-Identifier: Apache-2.0
// Included inside of a control with the actions `to_port` and `flood`: where a destination's MAC address leads.

    @id(2) table forward {
        key = { hdr.ethernet.dst_mac: exact @name("mac"); }
        actions = { to_port; flood; }
        const default_action = flood;
        size = 4096;
    }
