#!/usr/bin/env bash
# Makes the folder of docs/audit.md and docs/classifiers.md: docs/clipart.sh FOLDER
#
# 43 drawings of five classes from the Open Clip Art Library (public domain), as Debian's package openclipart-png has them, five of
# them in the wrong class. Needs apt-get and dpkg-deb, and 130 MB of download.
set -euo pipefail
into=$(realpath -m "${1:?usage: clipart.sh FOLDER}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq openclipart-png 2>/dev/null
dpkg-deb -x openclipart-png*.deb .
cd usr/share/openclipart/png

# take CLASS FOLDER NAME.. : without the numbers at the ends of names
take() {
    local class=$1 folder=$2
    shift 2
    mkdir -p "$into/$class"
    for name in "$@"; do
        cp "$folder/$name.png" "$into/$class/$(sed -E 's/_0?[0-9]*r?$//' <<<"$name").png"
    done
}
take apples food/fruit an_apple_01 another_apple_01 apple apple_mateya_01 apple_with_worm_dan_gerh_01 applf \
    slate-apple_benji_park_01 apple_martin_schmidt-li_01r
take lemons food/fruit lemon lemon_whole_ganson lemon_half_ganson lemon_slice_ganson lime_half_ganson lime_whole_ganson \
    lemon_wedge_ganson
take flowers plants/flowers flower_01 red_flower_01 flower1_juliane_krug_01 flower2_juliane_krug_01 sun_flower_ganson \
    daisy_jonathan_dietrich_01 pink-rose_tess_brady_01 daffodil_susan_park_01
take cars transportation/vehicles car 4wd blazer_01 old_car_lumen_design_st_r redcar_marcelo_caiafa_ skoda_car_alejandro_teja_ \
    1989_chevrolet_celebrit_01
take strings recreation/music violin_ganson violin_colour_ganson violin_mo_01 cello_mo_01 guitar_ganson guitar_jarno_vasamaa1 \
    electric_guitar_andrea__01r bass_guitar_a.j._ashton_
# Misfiled.
take lemons food/fruit cartoon_apple_k_yager_01
take strings transportation/vehicles hummer_01
take apples plants/flowers tulips_ganson
take flowers recreation/music cello_ganson
take cars food/fruit lemon_simple
